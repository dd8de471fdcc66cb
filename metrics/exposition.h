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

/// Whether a request for /metrics means this process: it names its id as `process`, or none. A list
/// of targets that a killed run left would else show the next run on that port under its name.
bool means_process(std::string_view target, std::string_view id);

struct ExpositionOptions {
  double turn_limit_s = 600;  ///< /livez fails once the loop has not turned for so long
  double step_limit_s = 600;  ///< /healthz fails once no step has ended for so long
  std::string process = {};   ///< id of this process; /metrics?process=OTHER is a 404
};

/// What makes the pages.
struct PageMakers {
  std::function<std::string()> metrics;  ///< the text of /metrics
  std::function<std::string()> live;     ///< what live_json() gives
};

/// The pages of one process:
///   /metrics    all series, text format 0.0.4
///   /livez      200 while the process' loop turns
///   /readyz     200 once the world has formed and a step is done
///   /healthz    200 while live, not failed, and the last step lies within the limit (a finished
///               run is healthy)
///   /targets.json  where all ranks are served, for Prometheus' http_sd; rank 0 alone has it
///   /           the run as curves, for people; it asks for /live.json
/// The probes answer "ok" or what fails; with ?verbose each check on a line. Anything else is a 404
/// that names these. Any thread may call everything here.
class Exposition {
 public:
  /// `health` must outlive this.
  Exposition(ExpositionOptions options, const Health& health, PageMakers pages);

  /// The live page of rank 0, from "http://n1:9464", may read /live.json of this rank.
  void share_live_with(const std::string& origin);
  /// What /targets.json answers from now on.
  void set_targets(std::string json);
  /// How many answers of /metrics have begun.
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
