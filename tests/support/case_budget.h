#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string_view>

namespace lockstep::fuzz {

/// Cases that a fuzzer tries: --first I, --cases N, --seconds S; without --cases, S seconds of
/// them.
class CaseBudget {
 public:
  explicit CaseBudget(uint64_t num_cases) : num_cases_(num_cases) {}

  /// True if `name` is one of these arguments, which then has this value.
  bool takes(std::string_view name, const char* value) {
    if (name == "--first") return first_ = std::strtoull(value, nullptr, 10), true;
    if (name == "--cases") return num_cases_ = std::strtoull(value, nullptr, 10), true;
    if (name != "--seconds") return false;
    seconds_ = std::chrono::duration<double>(std::strtod(value, nullptr));
    num_cases_ = std::numeric_limits<uint64_t>::max() / 2;
    return true;
  }

  uint64_t first() const { return first_; }
  /// True if case `index` is tried; counts from first().
  bool has(uint64_t index) {
    const bool is_in =
        index - first_ < num_cases_ && (seconds_.count() <= 0 || Clock::now() - begin_ < seconds_);
    if (is_in) num_tried_ = index - first_ + 1;
    return is_in;
  }
  uint64_t num_tried() const { return num_tried_; }

 private:
  using Clock = std::chrono::steady_clock;
  uint64_t first_ = 0, num_cases_, num_tried_ = 0;
  std::chrono::duration<double> seconds_{0};
  Clock::time_point begin_ = Clock::now();
};

}  // namespace lockstep::fuzz
