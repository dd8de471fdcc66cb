#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace lockstep::checkpoint {

/// Fill level of a memory area, from its start: one thread fills it, others follow.
class Watermark {
 public:
  /// Declares all bytes before `num_bytes` final.
  void raise(int64_t num_bytes);
  /// Declares that nothing more will come; waiting calls return false.
  void give_up();
  /// Waits until all bytes before `num_bytes` are final; false if they never will be.
  bool wait_for(int64_t num_bytes);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t num_bytes_ = 0;
  bool given_up_ = false;
};

}  // namespace lockstep::checkpoint
