#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

#include "metrics/http/http_server.h"

namespace lockstep::daemon {

/// Lets one line through in a time and counts those that it keeps back.
class LineLimit {
 public:
  using Clock = std::chrono::steady_clock;

  explicit LineLimit(Clock::duration between) : between_(between) {}

  /// The number kept back since the last line; nothing: this one is kept back too.
  std::optional<int64_t> admit(Clock::time_point now);
  int64_t num_kept_back() const { return num_kept_back_; }

 private:
  const Clock::duration between_;
  std::optional<Clock::time_point> last_;
  int64_t num_kept_back_ = 0;
};

/// Logs the calls of the control API that ControlApi does not: what is refused, as a warning, at
/// most one line a second; a GET, which changes nothing and which a program may send again and
/// again, at most one line a minute. Each line has the number of those left out before it. All else
/// goes on to another observer. Calls come from the HTTP server's thread.
class ControlLog final : public metrics::HttpObserver {
 public:
  /// `next` may be null; it must outlive this.
  explicit ControlLog(metrics::HttpObserver* next) : next_(next) {}
  /// Tells how many calls were left out since the last line.
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
