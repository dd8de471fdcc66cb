#pragma once

#include <chrono>
#include <functional>
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
inline constexpr std::string_view kOtherRoute = "other";

struct ExpositionOptions {
  std::string run_name;
  int rank = 0;
  double turn_limit_s = 600;  ///< /livez fails once the loop has not turned for so long
  double step_limit_s = 600;  ///< /healthz fails once no step has ended for so long
};

/// The pages of one process:
///   /metrics  all series, text format 0.0.4
///   /livez    200 while the process' loop turns
///   /readyz   200 once the world has formed and a step is done
///   /healthz  200 while live, not failed, and the last step lies within the limit (a finished run
///   is healthy) /         an index
/// The probes answer "ok" or what fails; with ?verbose each check on a line. Anything else is a 404
/// that names these. Any thread may call handle().
class Exposition {
 public:
  /// `health` must outlive this; `page` makes the text of /metrics.
  Exposition(ExpositionOptions options, const Health& health, std::function<std::string()> page);

  HttpResponse handle(std::string_view target,
                      Health::Clock::time_point now = Health::Clock::now()) const;

 private:
  struct Check;
  HttpResponse probe(std::string_view route, std::string_view query,
                     Health::Clock::time_point now) const;
  Check turns(Health::Clock::time_point now) const;
  Check steps(Health::Clock::time_point now) const;
  std::string index() const;

  const ExpositionOptions options_;
  const Health& health_;
  const std::function<std::string()> page_;
};

}  // namespace lockstep::metrics
