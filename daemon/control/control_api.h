#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/threads/background_value.h"
#include "checkpoint/files/save_files.h"
#include "daemon/config/run_config.h"
#include "daemon/control/requests.h"
#include "metrics/health.h"
#include "metrics/http/http_server.h"

namespace lockstep::daemon {

inline constexpr std::string_view kControlRoute = "/control/";

/// The control API of a run, on rank 0 (daemon/control/openapi.json describes it):
///
///   GET  /control/status        the run as JSON
///   GET  /control/openapi.json  this API
///   POST /control/save | stop | pause | resume
///   POST /control/set?KEY=VALUE
///
/// Served where only this host can reach it, and elsewhere where a token is asked for; or at a Unix
/// socket of this user's alone.
///
/// A POST answers 202 when the wish is noted: all ranks follow it after one and the same step.
/// What is followed is logged here, all other calls by ControlLog. Calls come from the HTTP
/// server's thread.
class ControlApi {
 public:
  /// All but `world_size` must outlive it.
  ControlApi(const RunConfig& config, int world_size, Requests& requests,
             const metrics::Health& health);

  /// `target` begins with kControlRoute.
  metrics::HttpResponse get(std::string_view target) const;
  metrics::HttpResponse post(std::string_view target);

 private:
  std::string status() const;
  metrics::HttpResponse set(std::string_view query);

  const RunConfig& config_;
  const std::string folder_;  ///< of the run, an absolute path
  const int world_size_;
  Requests& requests_;
  const metrics::Health& health_;
  /// Listed on a thread of its own: a disk that hangs must not take the pages with it.
  mutable BackgroundValue<std::vector<checkpoint::SaveName>> saves_;
};

}  // namespace lockstep::daemon
