#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "daemon/watch/rank_events.h"
#include "daemon/watch/watchdog_options.h"
#include "metrics/health.h"

namespace lockstep::daemon {

/// What the watchdog does when a rank hangs; both are called from its thread.
struct WatchdogActions {
  /// May be empty. Where it takes more than 2 s, abort() is called meanwhile.
  std::function<void(const std::string& what)> before_abort;
  /// Ends all ranks; does not return.
  std::function<void(const std::string& what)> abort;
};

/// A thread of each rank that looks after its own loop, with limits by phase: what stands still for
/// slow_s is logged, with where it stands (the innermost span, base/trace/trace_span.h), once; what
/// does so for hang_s ends all ranks, after the newest spans are written down. It needs no other
/// rank's help: a rank that waits for another is told by dist, which knows for whom (sync.timeout_s
/// ends that), and a stopped process by its peers.
///
/// Time counts only while this thread itself gets to run, so that a process that was stopped and
/// goes on, or a suspended host, alarms nobody. A run that has ended or failed is not watched.
class Watchdog {
 public:
  /// Watches the thread that makes it. All that is passed must outlive it.
  Watchdog(const WatchdogOptions& options, int rank, const RankEvents& events,
           const metrics::Health& health, WatchdogActions actions);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// From its next look on, within a second: WatchdogOptions::set(). Any thread.
  void set_limit(const std::string& key, double value_s);

 private:
  using Clock = std::chrono::steady_clock;
  void run();
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
  double still_s_ = 0;  ///< seen without a turn, in one phase
  bool is_told_ = false;
  std::mutex mutex_;
  WatchdogOptions options_;  // guarded by mutex_
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace lockstep::daemon
