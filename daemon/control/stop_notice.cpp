#include "daemon/control/stop_notice.h"

#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/threads/signals_blocked.h"

namespace lockstep::daemon {
namespace {

constexpr std::chrono::milliseconds kTurn{200};
// Longer than a rank that was told itself waits for its data: then nothing need be told.
constexpr std::chrono::milliseconds kPatience{1500};

}  // namespace

StopNotice::StopNotice(std::unique_ptr<dist::Notice> notice, Requests& requests,
                       std::function<bool()> is_training)
    : notice_(std::move(notice)), requests_(requests), is_training_(std::move(is_training)) {
  requests_.set_ears([this] { return notice_->heard(); });
  const SignalsBlocked inherited_by_the_thread;
  thread_ = std::thread([this] { run(); });
  ::pthread_setname_np(thread_.native_handle(), "lockstep-stop");
}

StopNotice::~StopNotice() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  thread_.join();
  requests_.set_ears({});
}

void StopNotice::run() {
  std::unique_lock lock(mutex_);
  try {
    while (!wake_.wait_for(lock, kTurn, [this] { return ends_; })) look();
  } catch (const Error& fault) {  // a lost rank is found by who waits for it
    log::debug("control", fault.what());
  }
}

void StopNotice::look() {
  const uint32_t asked = requests_.asked_here();
  if (asked == 0 || !is_training_()) return;
  if (!asked_at_) asked_at_ = Clock::now();
  if (Clock::now() - *asked_at_ >= kPatience) notice_->tell(asked);
}

}  // namespace lockstep::daemon
