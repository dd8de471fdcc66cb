#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "metrics/http/http_server.h"
#include "metrics/page_format.h"
#include "metrics/samples.h"

namespace prometheus {
class Registry;
}

/// Pages and probes of a process over HTTP, the state of its probes, and counters of its answers.
namespace lockstep::metrics {

/// State from which the probes answer. The trainer writes, the server reads. Any thread, no lock.
/// Times are of the steady clock, so a jump of the wall clock causes no alarm.
class Health {
 public:
  using Clock = std::chrono::steady_clock;

  /// `tells_states`: log each change of state. Set it on one rank of a run.
  explicit Health(Clock::time_point start = Clock::now(), bool tells_states = false)
      : tells_states_(tells_states), last_turn_(ticks(start)), last_step_(ticks(start)) {}

  /// Records that all ranks have joined and their checks have passed.
  void note_world_formed() { world_formed_.store(true, std::memory_order_relaxed); }
  /// Records progress of the loop. Call it in every loop that can take long: training, validation
  /// batches, waiting for a save.
  void note_turn(Clock::time_point now = Clock::now()) {
    last_turn_.store(ticks(now), std::memory_order_relaxed);
  }
  /// Records the end of a training step; includes note_turn().
  void note_step(Clock::time_point now = Clock::now()) {
    num_steps_.fetch_add(1, std::memory_order_relaxed);
    last_step_.store(ticks(now), std::memory_order_relaxed);
    note_turn(now);
  }
  /// Sets the state. Only the trainer calls it. With tells_states it takes the log's lock.
  void note_state(RunState state);
  /// Records that a checkpoint was read. The time until the first step counts from here.
  void note_restored(Clock::time_point now = Clock::now()) {
    last_step_.store(ticks(now), std::memory_order_relaxed);
    note_turn(now);
    note_state(RunState::kInitializing);
  }

  bool world_formed() const { return world_formed_.load(std::memory_order_relaxed); }
  int64_t num_steps() const { return num_steps_.load(std::memory_order_relaxed); }
  RunState state() const { return state_.load(std::memory_order_relaxed); }
  Clock::time_point last_turn() const {
    return Clock::time_point(Clock::duration(last_turn_.load(std::memory_order_relaxed)));
  }
  /// Time since the last turn or step; since the start if there was none.
  double seconds_since_turn(Clock::time_point now) const {
    return seconds_between(last_turn_, now);
  }
  double seconds_since_step(Clock::time_point now) const {
    return seconds_between(last_step_, now);
  }

 private:
  using Ticks = Clock::rep;
  static Ticks ticks(Clock::time_point time) { return time.time_since_epoch().count(); }
  static double seconds_between(const std::atomic<Ticks>& from, Clock::time_point to) {
    const Clock::duration gap(ticks(to) - from.load(std::memory_order_relaxed));
    return std::chrono::duration<double>(gap).count();
  }

  const bool tells_states_;
  std::atomic<bool> world_formed_{false};
  std::atomic<int64_t> num_steps_{0};
  std::atomic<RunState> state_{RunState::kInitializing};
  std::atomic<Ticks> last_turn_, last_step_;
};

inline constexpr std::string_view kMetricsRoute = "/metrics";
inline constexpr std::string_view kLiveRoute = "/livez";
inline constexpr std::string_view kReadyRoute = "/readyz";
inline constexpr std::string_view kHealthRoute = "/healthz";
inline constexpr std::string_view kIndexRoute = "/";
inline constexpr std::string_view kLiveDataRoute = "/live.json";
inline constexpr std::string_view kTargetsRoute = "/targets.json";
inline constexpr std::string_view kOtherRoute = "other";

/// True if a request for /metrics addresses this process: its `process` parameter is absent or
/// equals `id`. A targets list that a killed run left would otherwise show the next run on that
/// port under the wrong name.
bool means_process(std::string_view target, std::string_view id);

struct ExpositionOptions {
  double turn_limit_s = 600;  ///< /livez fails once the loop made no progress for so long
  double step_limit_s = 600;  ///< /healthz fails once no step has ended for so long
  std::string process = {};   ///< id of this process; /metrics?process=OTHER is a 404
};

/// Functions that generate the pages.
struct PageMakers {
  std::function<std::string(PageFormat)> metrics;  ///< the content of /metrics
  std::function<std::string()> live;               ///< result of live_json()
};

/// Pages of one process:
///
///   /metrics       all series, in the PageFormat that the client prefers
///   /livez         200 while the process' loop makes progress
///   /readyz        200 once the world has formed and a step is done
///   /healthz       200 while live, not failed, and the last step is within the limit (a finished
///                  run is healthy)
///   /targets.json  addresses of all ranks, for Prometheus' http_sd; only on rank 0
///   /              curves of the run, for people; the page requests /live.json
///
/// The probes answer "ok" or the failed check. With ?verbose they list each check on a line. Any
/// other path is a 404 that names these. Any thread may call all methods.
class Exposition {
 public:
  /// `health` must outlive the object.
  Exposition(ExpositionOptions options, const Health& health, PageMakers pages);

  /// Allows rank 0's live page, with an origin such as "http://n1:9464", to read this rank's
  /// /live.json.
  void share_live_with(const std::string& origin);
  /// Sets the answer of /targets.json.
  void set_targets(std::string json);
  /// Returns the number of /metrics answers that have begun.
  int64_t num_scrapes() const { return num_scrapes_.load(); }

  HttpResponse handle(const HttpRequest& request,
                      Health::Clock::time_point now = Health::Clock::now()) const;

 private:
  struct Check;
  HttpResponse probe(std::string_view route, std::string_view query,
                     Health::Clock::time_point now) const;
  Check turns(Health::Clock::time_point now) const;
  Check steps(Health::Clock::time_point now) const;
  HttpResponse live_data() const;
  std::string targets() const;

  const ExpositionOptions options_;
  const Health& health_;
  const PageMakers pages_;
  mutable std::mutex mutex_;
  std::string live_origin_, targets_;  // guarded by mutex_
  mutable std::atomic<int64_t> num_scrapes_{0};
};

/// Counts a server's answers and rejections in a registry, which must outlive the object.
class HttpMetrics final : public HttpObserver {
 public:
  explicit HttpMetrics(prometheus::Registry& registry);
  ~HttpMetrics() override;

  void on_answer(std::string_view route, int status, double duration_s) override;
  void on_rejected(Rejection reason) override;
  /// Sets the number of ranks whose pages are missing, among those that this process serves. Any
  /// thread.
  void set_missing_ranks(int num_ranks);

 private:
  struct Series;
  std::unique_ptr<Series> series_;
};

}  // namespace lockstep::metrics
