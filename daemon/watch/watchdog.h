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

/// Actions of the watchdog when a rank hangs. The watchdog's thread calls both.
struct WatchdogActions {
  /// May be empty. If it takes more than 2 s, abort() is called meanwhile.
  std::function<void(const std::string& what)> before_abort;
  /// Ends all ranks; does not return.
  std::function<void(const std::string& what)> abort;
};

/// Thread that watches this rank's training loop, with time limits for each phase. After slow_s
/// without progress it logs the innermost open span (base/trace/trace_span.h), once. After hang_s
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
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Calls WatchdogOptions::set(). Takes effect within a second. Any thread.
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
  double still_s_ = 0;  ///< without progress, within one phase
  bool is_told_ = false;
  std::mutex mutex_;
  WatchdogOptions options_;  // guarded by mutex_
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace lockstep::daemon
