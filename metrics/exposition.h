#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "metrics/health.h"
#include "metrics/http/http_server.h"

namespace lockstep::metrics {

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
  std::function<std::string()> metrics;  ///< the text of /metrics
  std::function<std::string()> live;     ///< result of live_json()
};

/// Pages of one process:
///
///   /metrics       all series, text format 0.0.4
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

  HttpResponse handle(std::string_view target,
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

}  // namespace lockstep::metrics
