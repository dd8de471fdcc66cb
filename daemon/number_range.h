#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

/// Checks of the numbers on command lines. CLI11's own do not say what is wrong with "30s", and
/// print a limit that is none with 300 digits.
namespace lockstep::daemon {

/// Of numbers that a `T` holds, both limits included.
template <typename T>
CLI::Validator range_check(T min, T max, const std::string& what, const std::string& shown) {
  const auto fault_of = [=](const std::string& text) {
    T value{};
    const bool fits = CLI::detail::lexical_cast(text, value) && value >= min && value <= max;
    return fits ? std::string() : fmt::format("takes {}, without a unit, not '{}'", what, text);
  };
  return {fault_of, shown};
}

inline CLI::Validator whole_number(int64_t min, int64_t max) {
  return range_check(min, max, fmt::format("a whole number from {} to {}", min, max),
                     fmt::format("INT in [{} - {}]", min, max));
}

/// 1 or more, as the number of a job.
inline CLI::Validator positive_number() {
  return range_check(int64_t{1}, std::numeric_limits<int64_t>::max(), "a whole number above 0",
                     "POSITIVE");
}

/// Such as seconds.
inline CLI::Validator number(double min, double max) {
  return range_check(min, max, fmt::format("a number from {} to {}", min, max),
                     fmt::format("FLOAT in [{:g} - {:g}]", min, max));
}

}  // namespace lockstep::daemon
