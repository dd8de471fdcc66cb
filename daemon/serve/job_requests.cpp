#include "daemon/serve/job_requests.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>

namespace lockstep::daemon {
namespace {

constexpr int64_t kLookEvery_ns = 20'000'000;

int64_t steady_now_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

JobRequests::JobRequests(train::StopRequest& signals, std::filesystem::path cancel_file)
    : signals_(signals),
      cancel_file_(std::move(cancel_file)),
      saves_before_(signals.num_saves_asked()) {
  for (size_t i = 0; i < received_before_.size(); ++i)
    received_before_[i] = signals.num_received(train::kCountedSignals[i]);
}

JobRequests::~JobRequests() { signals_.set_stop_signals({SIGUSR1}); }

bool JobRequests::is_cancelled() const {
  if (cancel_file_.empty() || is_cancelled_) return is_cancelled_;
  const int64_t now_ns = steady_now_ns();
  int64_t look_again_at_ns = look_again_at_ns_;
  const bool is_time = now_ns >= look_again_at_ns;
  if (!is_time ||
      !look_again_at_ns_.compare_exchange_strong(look_again_at_ns, now_ns + kLookEvery_ns))
    return false;
  std::error_code ignored;
  is_cancelled_ = std::filesystem::exists(cancel_file_, ignored);
  return is_cancelled_;
}

int64_t JobRequests::num_saves_asked() const {
  return std::max<int64_t>(0, signals_.num_saves_asked() - saves_before_);
}

int64_t JobRequests::num_received(int signal_number) const {
  const auto& all = train::kCountedSignals;
  const auto place =
      static_cast<size_t>(std::find(all.begin(), all.end(), signal_number) - all.begin());
  return signals_.num_received(signal_number) - received_before_.at(place);
}

}  // namespace lockstep::daemon
