#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace lockstep::checkpoint {

/// How far a stretch of memory is filled, from its beginning: one thread fills, others follow.
class Watermark {
 public:
  /// All bytes before `num_bytes` are final.
  void raise(int64_t num_bytes);
  /// Nothing more will come: whoever waits gets false.
  void give_up();
  /// Returns once all bytes before `num_bytes` are final; false if they never will be.
  bool wait_for(int64_t num_bytes);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t num_bytes_ = 0;
  bool given_up_ = false;
};

}  // namespace lockstep::checkpoint
