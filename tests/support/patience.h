#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace lockstep::tests {

/// Seconds since the start of this machine in which a program waited for a processor. 0 if the
/// kernel does not say it.
inline double stalled_s() {
  std::ifstream file("/proc/pressure/cpu");
  std::string line;
  std::getline(file, line);
  const size_t at = line.find("total=");
  return at == std::string::npos ? 0 : 1e-6 * std::strtod(line.c_str() + at + 6, nullptr);
}

/// A time limit that begins with its construction. Time in which programs waited for a processor
/// does not count. LOCKSTEP_TEST_PATIENCE, a factor, is for sanitizers and for kernels that do not
/// say that time. tests/support/patience.py is the same for Python.
class Patience {
 public:
  explicit Patience(double limit_s) : limit_s_(limit_s * factor()) {}

  double passed_s() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  /// Time limit in seconds: at most 8 limits, so that a test that waits for nothing ends.
  double allowed_s() const {
    return std::min(limit_s_ + stalled_s() - stalled_before_s_, 8 * limit_s_);
  }
  bool is_over() const { return passed_s() > allowed_s(); }
  /// Assertion for EXPECT_TRUE: false, with the times, if the limit has passed.
  ::testing::AssertionResult is_kept() const {
    if (!is_over()) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure()
           << fmt::format("took {:.2f} s; {:g} s and {:.2f} s for want of a processor are allowed",
                          passed_s(), limit_s_, allowed_s() - limit_s_);
  }

 private:
  static double factor() {
    const char* text = std::getenv("LOCKSTEP_TEST_PATIENCE");
    return text == nullptr ? 1 : std::strtod(text, nullptr);
  }

  double limit_s_;
  double stalled_before_s_ = stalled_s();
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// Waits between two looks at a condition.
inline void pause_between_looks() { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }

/// Waits until the condition holds. False if it does not in that time.
template <typename Condition>
bool comes_true(const Condition& condition, double limit_s = 30) {
  const Patience patience(limit_s);
  while (!condition()) {
    if (patience.is_over()) return condition();
    pause_between_looks();
  }
  return true;
}

/// True if the condition holds now and for so long. A machine without a free processor makes it
/// longer.
template <typename Condition>
bool stays_true(const Condition& condition, double time_s) {
  for (const Patience patience(time_s); !patience.is_over(); pause_between_looks())
    if (!condition()) return false;
  return condition();
}

}  // namespace lockstep::tests
