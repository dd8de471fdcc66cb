#include "checkpoint/save/watermark.h"

namespace lockstep::checkpoint {

void Watermark::raise(int64_t num_bytes) {
  {
    const std::lock_guard lock(mutex_);
    num_bytes_ = num_bytes;
  }
  changed_.notify_all();
}

void Watermark::give_up() {
  {
    const std::lock_guard lock(mutex_);
    given_up_ = true;
  }
  changed_.notify_all();
}

bool Watermark::wait_for(int64_t num_bytes) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return given_up_ || num_bytes_ >= num_bytes; });
  // Bytes that became final before giving up may still be used.
  return num_bytes_ >= num_bytes;
}

}  // namespace lockstep::checkpoint
