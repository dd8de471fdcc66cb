#include "daemon/control/requests.h"

#include "base/error.h"
#include "base/log.h"
#include "base/threads.h"

namespace lockstep::daemon {

uint32_t Requests::asked_here() const {
  return (stop_asked_ || signals_.stop_asked() ? kStop : 0) | (signals_.end_asked() ? kEnd : 0);
}

void Requests::change(const Change& change) {
  const std::lock_guard lock(mutex_);
  // The flag lets the loop check for changes at every step without the lock.
  changes_.push_back(change);
  has_changes_ = true;
}

/// Adds a change in place of an earlier one of its key. Skips kill-rank, so that no later session
/// repeats it.
static void add(const Change& change, std::vector<Change>* changes) {
  if (change.key == kKillRankKey) return;
  std::erase_if(*changes, [&](const Change& one) { return one.key == change.key; });
  changes->push_back(change);
}

void Requests::note_made(const Change& change) {
  const std::lock_guard lock(mutex_);
  add(change, &made_);
}

OpenRequests Requests::open() const {
  const std::lock_guard lock(mutex_);
  OpenRequests requests{
      .stop = stop_asked_ || left_.stop, .pause = pause_asked_ || left_.pause, .changes = made_};
  for (const Change& one : changes_) add(one, &requests.changes);
  return requests;
}

void Requests::reopen(const OpenRequests& requests, bool is_root) {
  const std::lock_guard lock(mutex_);
  made_ = requests.changes;
  // Saves that signals asked for before are made already.
  num_saves_asked_ = -signals_.num_saves_asked();
  if (!is_root) {
    left_ = requests;
    left_until_ = step_ + 2;
    return;
  }
  stop_asked_ = requests.stop;
  pause_asked_ = requests.pause;
  changes_ = requests.changes;
  has_changes_ = !changes_.empty();
}

void Requests::note_step(int64_t step) {
  step_ = step;
  const std::lock_guard lock(mutex_);
  if (step >= left_until_) left_ = {};
}

std::vector<Change> Requests::take_changes() {
  const std::lock_guard lock(mutex_);
  has_changes_ = false;
  for (const Change& one : changes_) add(one, &made_);
  return std::exchange(changes_, {});
}

namespace {

constexpr std::chrono::milliseconds kTurn{200};
// Longer than a rank's own wait for data after a stop request: usually no notice is necessary.
constexpr std::chrono::milliseconds kPatience{1500};

}  // namespace

StopNotice::StopNotice(std::unique_ptr<dist::Notice> notice, Requests& requests,
                       std::function<bool()> is_training)
    : notice_(std::move(notice)), requests_(requests), is_training_(std::move(is_training)) {
  // From now on Requests::listen() includes the other ranks' requests.
  requests_.set_ears([this] { return notice_->heard(); });
  // The thread inherits the mask, so the main thread receives all signals.
  const SignalsBlocked inherited_by_the_thread;
  thread_ = std::jthread([this](const std::stop_token& ends) { run(ends); });
  ::pthread_setname_np(thread_.native_handle(), "lockstep-stop");
}

StopNotice::~StopNotice() {
  thread_ = {};  // stops the thread and waits for it
  // The thread has ended, and notice_ is about to be destroyed.
  requests_.set_ears({});
}

void StopNotice::run(const std::stop_token& ends) {
  try {
    while (!stops_within(kTurn, ends)) look();
  } catch (const Error& fault) {  // the rank that waits for a lost one reports it
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
