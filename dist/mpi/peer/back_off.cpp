#include "dist/mpi/peer/back_off.h"

#include <algorithm>
#include <thread>

#include <sched.h>

namespace lockstep::dist::mpi {
namespace {

constexpr auto kSpinBeforeSleep = std::chrono::microseconds(20);
constexpr BackOff::Clock::duration kLongestSleep = std::chrono::milliseconds(1);
constexpr BackOff::Clock::duration kShortestSleep = std::chrono::microseconds(20);

}  // namespace

void BackOff::pause() const {
  const Clock::duration so_far = waited();
  if (so_far < kSpinBeforeSleep) return;
  // A yield lets other threads run first; a sleep frees the core for longer.
  if (so_far < yield_for_)
    sched_yield();
  else
    std::this_thread::sleep_for(std::clamp(so_far / 8, kShortestSleep, longest_sleep(so_far)));
}

BackOff::Clock::duration BackOff::longest_sleep(Clock::duration so_far) const {
  return std::max(longest_sleep_, std::min(so_far / 64, kLongestSleep));
}

}  // namespace lockstep::dist::mpi
