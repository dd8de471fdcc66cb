#include "bench/programs/pairs.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <exception>

#include <fmt/format.h>

namespace lockstep::bench {
namespace {

double thread_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

double prepared_ms(const std::function<void()>& prepare, const std::function<void()>& body) {
  if (prepare) prepare();
  return time_ms(body);
}

double their_ms(const Contest& contest) {
  if (contest.prepare_theirs) contest.prepare_theirs();
  return prepared_ms(contest.prepare, contest.theirs);
}

std::string_view verdict(const Outcome& outcome, double goal_ratio) {
  if (outcome.lowest >= goal_ratio) return met(true);
  return outcome.highest < goal_ratio ? met(false) : "within noise";
}

}  // namespace

double time_ms(const std::function<void()>& body) {
  const double start_ms = thread_ms();
  body();
  return thread_ms() - start_ms;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<long>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Outcome run(const Contest& contest) {
  std::vector<double> ours, theirs, ratios;
  for (int pair = 0; pair <= contest.num_pairs; ++pair) {
    const bool are_theirs_first = pair % 2 == 1;
    double theirs_ms = are_theirs_first ? their_ms(contest) : 0;
    const double ours_ms = prepared_ms(contest.prepare, contest.ours);
    if (!are_theirs_first) theirs_ms = their_ms(contest);
    if (pair == 0) continue;
    ours.push_back(ours_ms);
    theirs.push_back(theirs_ms);
    ratios.push_back(theirs_ms / ours_ms);
  }
  const auto [lowest, highest] = std::minmax_element(ratios.begin(), ratios.end());
  return {median(ours), median(theirs), median(ratios), *lowest, *highest};
}

void print(const Contest& contest, const Outcome& outcome) {
  fmt::print("{:<32}{:>8.2f} ms   {:<20}{:>8.2f} ms  {:>6.2f}x ({:.2f} to {:.2f})", contest.what,
             outcome.ours_ms, contest.peer, outcome.theirs_ms, outcome.ratio, outcome.lowest,
             outcome.highest);
  if (contest.goal_ratio)
    fmt::print("  goal >= {}x: {}", *contest.goal_ratio, verdict(outcome, *contest.goal_ratio));
  fmt::print("\n");
}

int exit_code_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}

std::string_view met(bool is_met) { return is_met ? "met" : "NOT MET"; }

double median_ms(int num_times, const std::function<void()>& prepare,
                 const std::function<void()>& body) {
  std::vector<double> times;
  for (int i = 0; i <= num_times; ++i) {
    const double ms = prepared_ms(prepare, body);
    if (i > 0) times.push_back(ms);
  }
  return median(times);
}

}  // namespace lockstep::bench
