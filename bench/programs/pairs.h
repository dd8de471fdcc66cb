#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::bench {

/// Runs `body` and returns the processor time of this thread, which does all its work: on a quiet
/// machine the wall time, on a busy one hardly more.
double time_ms(const std::function<void()>& body);

double median(std::vector<double> values);

/// One of ours against one of LibTorch's that does the same.
struct Contest {
  std::string what;
  std::string peer;
  std::optional<double> goal_ratio;  ///< the peer's time over ours, at least
  std::function<void()> prepare;     ///< before each timed call, untimed; may be empty
  std::function<void()> ours, theirs;
  int num_pairs = 9;
  std::function<void()> prepare_theirs = {};  ///< before each of theirs besides, untimed
};

struct Outcome {
  double ours_ms = 0, theirs_ms = 0;  ///< medians
  double ratio = 0;                   ///< median of the pairs' ratios, so that a shared machine's
                                      ///< slow moments fall on both
  double lowest = 0, highest = 0;     ///< ratios
};

/// Times ours and theirs in turn, which alternate in who is first; the first pair, which warms
/// caches and memory, does not count.
Outcome run(const Contest& contest);

/// Prints the outcome in one line, with goal and verdict: "met" or "NOT MET" if every pair says so,
/// else "within noise".
void print(const Contest& contest, const Outcome& outcome);

/// EXIT_SUCCESS; where `body` throws, its message on stderr and EXIT_FAILURE.
int exit_code_of(const std::function<void()>& body);

/// The verdict on a single number.
std::string_view met(bool is_met);

/// Median time of `body` after `prepare`.
double median_ms(int num_times, const std::function<void()>& prepare,
                 const std::function<void()>& body);

}  // namespace lockstep::bench
