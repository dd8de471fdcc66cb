#include "daemon/control/control_log.h"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "daemon/config/key_names.h"
#include "daemon/control/control_api.h"

namespace lockstep::daemon {
namespace {

/// First HTTP status that means a refusal.
constexpr int kFirstRefusal = 400;

/// True for calls of the control API. The same server may have other pages. A call without a
/// readable target counts too.
bool may_be_call(std::string_view target) {
  return target.empty() || target.starts_with(kControlRoute);
}

std::string shown(const metrics::HttpCall& call) {
  if (call.target.empty()) return fmt::format("what is no call, from {}", call.client);
  return fmt::format("{} {} from {}", printable(call.method), printable(call.target), call.client);
}

std::string left_out(int64_t count) {
  return count == 0 ? "" : fmt::format("; {} more since the last such line", count);
}

}  // namespace

std::optional<int64_t> LineLimit::admit(Clock::time_point now) {
  if (last_ && now - *last_ < between_) {
    ++num_kept_back_;
    return std::nullopt;
  }
  last_ = now;
  return std::exchange(num_kept_back_, 0);
}

ControlLog::~ControlLog() {
  if (const int64_t rest = refused_.num_kept_back(); rest > 0)
    log::warning("control",
                 fmt::format("{} more calls were refused since the last such line", rest));
  if (const int64_t rest = asked_.num_kept_back(); rest > 0)
    log::info("control", fmt::format("{} more GETs since the last such line", rest));
}

void ControlLog::on_call(const metrics::HttpCall& call) {
  if (next_ != nullptr) next_->on_call(call);
  const bool is_refused = call.status >= kFirstRefusal;
  // ControlApi logs each POST that it carries out.
  if (!may_be_call(call.target) || (!is_refused && call.method == "POST")) return;
  const std::optional<int64_t> kept_back =
      (is_refused ? refused_ : asked_).admit(LineLimit::Clock::now());
  if (!kept_back) return;
  if (is_refused)
    log::warning("control",
                 fmt::format("refused {}: {}{}", shown(call), call.status, left_out(*kept_back)));
  else
    log::info("control", shown(call) + left_out(*kept_back));
}

void ControlLog::on_answer(std::string_view route, int status, double duration_s) {
  if (next_ != nullptr) next_->on_answer(route, status, duration_s);
}

void ControlLog::on_rejected(metrics::Rejection reason) {
  if (next_ != nullptr) next_->on_rejected(reason);
}

}  // namespace lockstep::daemon
