#include "daemon/launching/kubernetes_quantity.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace lockstep::daemon {
namespace {

struct Unit {
  std::string_view suffix;
  double factor;
};

constexpr double kKi = 1024;
constexpr std::array kUnits{Unit{"", 1},
                            Unit{"n", 1e-9},
                            Unit{"u", 1e-6},
                            Unit{"m", 1e-3},
                            Unit{"k", 1e3},
                            Unit{"M", 1e6},
                            Unit{"G", 1e9},
                            Unit{"T", 1e12},
                            Unit{"P", 1e15},
                            Unit{"E", 1e18},
                            Unit{"Ki", kKi},
                            Unit{"Mi", kKi* kKi},
                            Unit{"Gi", kKi* kKi* kKi},
                            Unit{"Ti", kKi* kKi* kKi* kKi},
                            Unit{"Pi", kKi* kKi* kKi* kKi* kKi},
                            Unit{"Ei", kKi* kKi* kKi* kKi* kKi* kKi}};

/// 10 to the power of the number behind `e` or `E`.
std::optional<double> power_of(std::string_view exponent) {
  int power = 0;
  const char* const end = exponent.data() + exponent.size();
  const char* const begin = exponent.data() + (exponent.starts_with('+') ? 1 : 0);
  const auto [rest, fault] = std::from_chars(begin, end, power);
  if (fault != std::errc() || rest != end || std::abs(power) > 18) return {};
  return std::pow(10, power);
}

std::optional<double> factor_of(std::string_view suffix) {
  const auto* const found = std::find_if(kUnits.begin(), kUnits.end(),
                                         [&](const Unit& unit) { return unit.suffix == suffix; });
  if (found != kUnits.end()) return found->factor;
  if (suffix.front() == 'e' || suffix.front() == 'E') return power_of(suffix.substr(1));
  return {};
}

}  // namespace

std::optional<double> kubernetes_quantity(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  double number = 0;
  const auto [rest, fault] =
      std::from_chars(text.data(), text.data() + end, number, std::chars_format::fixed);
  if (fault != std::errc() || rest != text.data() + end) return {};
  const auto factor = factor_of(text.substr(end));
  if (!factor) return {};
  return number * *factor;
}

}  // namespace lockstep::daemon
