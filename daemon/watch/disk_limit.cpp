#include "daemon/watch/disk_limit.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "base/threads/signals_blocked.h"

// The main thread marks its disk accesses; this thread only compares times. It needs no cooperation
// of a main thread that hangs in the kernel.
namespace lockstep::daemon {
namespace {

constexpr std::chrono::milliseconds kDiskLookEvery{100};

}  // namespace

DiskLimit::DiskLimit(const train::StopRequest& stop, double limit_s, std::function<void(int)> abort)
    : stop_(stop), limit_s_(limit_s), abort_(std::move(abort)) {
  const SignalsBlocked inherited_by_the_thread;
  thread_ = std::thread([this] { watch(); });
}

DiskLimit::~DiskLimit() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void DiskLimit::watch() {
  using Clock = std::chrono::steady_clock;
  const auto limit =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit_s_));
  Clock::time_point ends_at = Clock::time_point::max();
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kDiskLookEvery, [this] { return is_over_; })) {
    const bool waits = is_used_ && (stop_.stop_asked() || stop_.end_asked());
    const Clock::time_point now = Clock::now();
    // The limit counts from the first look at which both are true: a stop request and disk access.
    ends_at = waits ? std::min(ends_at, now + limit) : Clock::time_point::max();
    if (now < ends_at) continue;
    log::error("serve", fmt::format("told to stop, and the disk of the queue does not answer "
                                    "within {} s: ends without it; no job is lost",
                                    limit_s_));
    abort_(static_cast<int>(ExitCode::kStopped));
  }
}

}  // namespace lockstep::daemon
