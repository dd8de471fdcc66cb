#include "base/threads/deadline.h"

#include <utility>

#include "base/threads/signals_blocked.h"

namespace lockstep {

Deadline::Deadline(std::chrono::duration<double> limit, std::function<void()> action) {
  // The thread inherits the blocked signals; the main thread handles them.
  const SignalsBlocked inherited_by_the_thread;
  thread_ = std::thread([this, limit, action = std::move(action)] {
    std::unique_lock lock(mutex_);
    if (wake_.wait_for(lock, limit, [this] { return is_over_; })) return;
    // Without the lock, so that the destructor can still set is_over_.
    lock.unlock();
    action();
  });
}

Deadline::~Deadline() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

}  // namespace lockstep
