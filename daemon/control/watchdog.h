#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <c10/util/ScopeExit.h>

#include "base/stop_request.h"
#include "daemon/config/run_options.h"
#include "dist/communicator.h"
#include "metrics/exposition.h"

/// Detection of hanging ranks and hanging disks.
namespace lockstep::daemon {

/// Access to the newest spans (base/trace.h) of all ranks. Any rank of a host can write
/// the spans of the others on that host, even if these hang, wait or are stopped.
class RankEvents {
 public:
  /// Collective. `logs`: folder of the files.
  RankEvents(dist::Communicator& control, std::filesystem::path logs);

  /// Writes lockstep-events-<rank>.json, oldest span first, for this rank and all other readable
  /// ranks. Skips ranks whose file was written since the run began. Logs the current span of each
  /// rank, and the ranks that are not readable. These are on other hosts or have ended, so a rank
  /// on their host must write them. Never throws. Any thread.
  void write() const;
  /// Logs only the current spans of the readable ranks. Never throws. Any thread.
  void log_places() const;

 private:
  struct Rank {
    int64_t pid = 0;
    uint64_t token = 0;  ///< identifies its spans
  };
  /// Current span of each rank, for the log.
  class Places;
  std::filesystem::path path_of(size_t rank) const;
  bool is_written(size_t rank) const;
  void write_unless_another_does(size_t rank, const std::string& text) const;

  const std::filesystem::path logs_;
  const std::filesystem::file_time_type begin_;
  const size_t own_rank_;
  std::vector<Rank> ranks_;
};

/// Actions of the watchdog when a rank hangs. The watchdog's thread calls both.
struct WatchdogActions {
  /// May be empty. If it takes more than 2 s, abort() is called meanwhile.
  std::function<void(const std::string& what)> before_abort;
  /// Ends all ranks; does not return.
  std::function<void(const std::string& what)> abort;
};

/// Thread that watches this rank's training loop, with time limits for each phase. After slow_s
/// without progress it logs the innermost open span (base/trace.h), once. After hang_s
/// it writes the newest spans and ends all ranks.
///
/// It needs no help of other ranks. `dist` reports a wait for another rank, since it knows which
/// one; sync.timeout_s ends that wait. The peers report a stopped process.
///
/// Time counts only while this thread itself is scheduled. So a stopped and continued process, or a
/// suspended host, causes no alarm. A run that has ended or failed is not watched.
class Watchdog {
 public:
  /// Watches the constructing thread. All arguments must outlive the object.
  Watchdog(const WatchdogOptions& options, int rank, const RankEvents& events,
           const metrics::Health& health, WatchdogActions actions);

  /// Calls WatchdogOptions::set(). Takes effect within a second. Any thread.
  void set_limit(const std::string& key, double value_s);

 private:
  using Clock = std::chrono::steady_clock;
  void run(const std::stop_token& ends);
  void look(const WatchdogOptions& options, double watched_s);
  WatchPhase phase() const;
  std::string where() const;

  const int rank_;
  const RankEvents& events_;
  const metrics::Health& health_;
  const WatchdogActions actions_;
  const int64_t watched_thread_;
  Clock::time_point last_turn_{};
  WatchPhase last_phase_ = WatchPhase::kInit;
  double still_s_ = 0;  ///< without progress, within one phase
  bool is_told_ = false;
  std::mutex mutex_;
  WatchdogOptions options_;  // guarded by mutex_
  std::jthread thread_;      // declared last: it uses the other members
};

/// Time limit for a hanging disk after a stop request: then ends all ranks with exit code 75. For
/// work that a stop cannot interrupt and that leaves nothing half done.
class DiskLimit {
 public:
  /// `limit_s`: longest wait for the disk after a stop request. `stop` must outlive the object.
  /// `abort` ends all ranks with an exit code and does not return.
  DiskLimit(const StopRequest& stop, double limit_s, std::function<void(int)> abort);

  /// Returns a scope in which this thread uses the disk.
  [[nodiscard]] auto use() {
    is_used_ = true;
    return c10::make_scope_exit([this] { is_used_ = false; });
  }

 private:
  void watch(const std::stop_token& ends);

  const StopRequest& stop_;
  const double limit_s_;
  const std::function<void(int)> abort_;
  std::atomic<bool> is_used_{false};
  std::jthread thread_;  // declared last: it uses the other members
};

}  // namespace lockstep::daemon
