#include "daemon/watch/end_limit.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace lockstep::daemon {
namespace {

// A shorter limit would abort saves that a slow disk still completes.
constexpr double kShortest_s = 5;

}  // namespace

EndLimit::EndLimit(const train::StopRequest& requests, double grace_s,
                   std::function<void(const Error&)> abort)
    : requests_(requests), limit_s_(std::max(kShortest_s, grace_s)), abort_(std::move(abort)) {}

void EndLimit::set_grace(double grace_s) { limit_s_ = std::max(kShortest_s, grace_s); }

void EndLimit::look(int64_t save) {
  if (!requests_.end_asked()) return;
  if (!told_at_) told_at_ = Clock::now();
  if (std::chrono::duration<double>(Clock::now() - *told_at_).count() < limit_s_) return;
  const Error end(
      ExitCode::kStopped, "train",
      fmt::format("told to end, and the save of step {} is not on disk {} s later "
                  "(preemption.grace_seconds, at least {} s): the disk may hang; ended without "
                  "it, the last commit stands",
                  save, limit_s_, kShortest_s));
  if (abort_) abort_(end);
  throw Error(end);
}

}  // namespace lockstep::daemon
