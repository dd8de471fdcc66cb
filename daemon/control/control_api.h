#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/threads.h"
#include "checkpoint/format/checkpoint_files.h"
#include "daemon/config/run_config.h"
#include "daemon/control/requests.h"
#include "dist/process_info.h"
#include "metrics/exposition.h"
#include "metrics/http/http_server.h"

/// Control API of a run over HTTP, and the log of its calls.
namespace lockstep::daemon {

inline constexpr std::string_view kControlRoute = "/control/";

/// Control API of a run, on rank 0 (described by daemon/control/openapi.json):
///
///   GET  /control/status        the run as JSON
///   GET  /control/openapi.json  this API
///   POST /control/save | stop | pause | resume
///   POST /control/set?KEY=VALUE
///   POST /control/kill-rank?rank=N
///
/// Served where only this host can connect, where a token is required, or at a Unix socket of this
/// user alone.
///
/// A POST is answered with 202 once the request is recorded. All ranks carry it out after the same
/// step. Calls that are carried out are logged here, all others by ControlLog. The HTTP server's
/// thread makes the calls.
class ControlApi {
 public:
  /// All arguments but `process` must outlive the object.
  ControlApi(const RunConfig& config, const dist::ProcessInfo& process, Requests& requests,
             const metrics::Health& health);

  /// `target` begins with kControlRoute.
  metrics::HttpResponse get(std::string_view target) const;
  metrics::HttpResponse post(std::string_view target);

 private:
  std::string status() const;
  metrics::HttpResponse set(std::string_view query);
  metrics::HttpResponse kill_rank(std::string_view query);

  const RunConfig& config_;
  const std::string folder_;  ///< the run's folder, an absolute path
  const dist::ProcessInfo process_;
  Requests& requests_;
  const metrics::Health& health_;
  /// Listed by a separate thread: a hanging disk must not block the pages.
  mutable BackgroundValue<std::vector<checkpoint::SaveName>> saves_;
};

/// Rate limit of log lines: admits one line per interval and counts the suppressed ones.
class LineLimit {
 public:
  using Clock = std::chrono::steady_clock;

  explicit LineLimit(Clock::duration between) : between_(between) {}

  /// Returns the number of lines suppressed since the last admitted one; nullopt if this line is
  /// suppressed too.
  std::optional<int64_t> admit(Clock::time_point now);
  int64_t num_kept_back() const { return num_kept_back_; }

 private:
  const Clock::duration between_;
  std::optional<Clock::time_point> last_;
  int64_t num_kept_back_ = 0;
};

/// Logs the control calls that ControlApi does not log. Refused calls become a warning, at most one
/// line a second. A GET changes nothing and may be repeated often by a program, so it gets at most
/// one line a minute. Each line contains the number of suppressed lines before it. All events are
/// also passed to the next observer. The HTTP server's thread makes the calls.
class ControlLog final : public metrics::HttpObserver {
 public:
  /// `next` may be null; it must outlive the object.
  explicit ControlLog(metrics::HttpObserver* next) : next_(next) {}
  /// Logs how many calls were suppressed since the last line.
  ~ControlLog() override;
  ControlLog(const ControlLog&) = delete;
  ControlLog& operator=(const ControlLog&) = delete;

  void on_call(const metrics::HttpCall& call) override;
  void on_answer(std::string_view route, int status, double duration_s) override;
  void on_rejected(metrics::Rejection reason) override;

 private:
  metrics::HttpObserver* const next_;
  LineLimit refused_{std::chrono::seconds(1)}, asked_{std::chrono::minutes(1)};
};

}  // namespace lockstep::daemon
