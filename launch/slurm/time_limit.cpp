#include "launch/slurm/time_limit.h"

#include <charconv>
#include <vector>

namespace lockstep::launch {
namespace {

constexpr int64_t kMinute = 60, kHour = 3600, kDay = 86400;
constexpr int64_t kMost = 1'000'000'000;  ///< of each number: their sum is far from overflow

std::optional<int64_t> count_of(std::string_view text) {
  int64_t count = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, fault] = std::from_chars(text.data(), end, count);
  if (fault != std::errc() || rest != end || count < 0 || count > kMost) return {};
  return count;
}

/// The numbers between the colons; nothing where one is none.
std::optional<std::vector<int64_t>> counts_of(std::string_view text) {
  std::vector<int64_t> counts;
  while (true) {
    const size_t colon = text.find(':');
    const auto count = count_of(text.substr(0, colon));
    if (!count) return {};
    counts.push_back(*count);
    if (colon == std::string_view::npos) return counts;
    text.remove_prefix(colon + 1);
  }
}

int64_t sum_of(const std::vector<int64_t>& counts, const std::vector<int64_t>& units) {
  int64_t sum_s = 0;
  for (size_t i = 0; i < counts.size(); ++i) sum_s += counts[i] * units[i];
  return sum_s;
}

}  // namespace

std::optional<int64_t> slurm_time_s(std::string_view text) {
  if (text == "UNLIMITED" || text == "INFINITE") return 0;
  const size_t dash = text.find('-');
  const bool has_days = dash != std::string_view::npos;
  const auto days = has_days ? count_of(text.substr(0, dash)) : std::optional<int64_t>(0);
  const auto counts = counts_of(has_days ? text.substr(dash + 1) : text);
  if (!days || !counts || counts->size() > 3) return {};
  const bool begins_with_hours = has_days || counts->size() == 3;
  return *days * kDay +
         (begins_with_hours ? sum_of(*counts, {kHour, kMinute, 1}) : sum_of(*counts, {kMinute, 1}));
}

}  // namespace lockstep::launch
