#include "daemon/control/requests.h"

#include <utility>

namespace lockstep::daemon {

uint32_t Requests::asked_here() const {
  return (stop_asked_ || signals_.stop_asked() ? kStop : 0) | (signals_.end_asked() ? kEnd : 0);
}

void Requests::change(const train::Change& change) {
  const std::lock_guard lock(mutex_);
  // The flag lets the loop check for changes at every step without the lock.
  changes_.push_back(change);
  has_changes_ = true;
}

std::vector<train::Change> Requests::take_changes() {
  const std::lock_guard lock(mutex_);
  has_changes_ = false;
  return std::exchange(changes_, {});
}

}  // namespace lockstep::daemon
