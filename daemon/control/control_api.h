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

/// Control API of a run, on rank 0 (described by daemon/control/openapi.json):
///
///   GET  /control/status        the run as JSON
///   GET  /control/openapi.json  this API
///   POST /control/save | stop | pause | resume
///   POST /control/set?KEY=VALUE
///
/// Served where only this host can connect, where a token is required, or at a Unix socket of this
/// user alone.
///
/// A POST is answered with 202 once the request is recorded. All ranks carry it out after the same
/// step. Calls that are carried out are logged here, all others by ControlLog. The HTTP server's
/// thread makes the calls.
class ControlApi {
 public:
  /// All arguments but `world_size` must outlive the object.
  ControlApi(const RunConfig& config, int world_size, Requests& requests,
             const metrics::Health& health);

  /// `target` begins with kControlRoute.
  metrics::HttpResponse get(std::string_view target) const;
  metrics::HttpResponse post(std::string_view target);

 private:
  std::string status() const;
  metrics::HttpResponse set(std::string_view query);

  const RunConfig& config_;
  const std::string folder_;  ///< the run's folder, an absolute path
  const int world_size_;
  Requests& requests_;
  const metrics::Health& health_;
  /// Listed by a separate thread: a hanging disk must not block the pages.
  mutable BackgroundValue<std::vector<checkpoint::SaveName>> saves_;
};

}  // namespace lockstep::daemon
