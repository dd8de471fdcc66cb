#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

/// Checks of numbers on command lines. CLI11's own checks do not say what is wrong with "30s". They
/// also print a missing limit as a number of 300 digits.
namespace lockstep::daemon {

/// Validator of numbers that a `T` can represent, from `min` to `max` inclusive.
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

/// Validator of whole numbers from 1, such as the number of a job.
inline CLI::Validator positive_number() {
  return range_check(int64_t{1}, std::numeric_limits<int64_t>::max(), "a whole number above 0",
                     "POSITIVE");
}

/// Validator of a floating-point number, such as a time in seconds.
inline CLI::Validator number(double min, double max) {
  return range_check(min, max, fmt::format("a number from {} to {}", min, max),
                     fmt::format("FLOAT in [{:g} - {:g}]", min, max));
}

}  // namespace lockstep::daemon
