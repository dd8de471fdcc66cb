#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "dist/nccl/gpu_calls.h"

namespace lockstep::dist::nccl {

/// Collectives of a communicator that are enqueued and not known to be done, oldest first. One
/// thread at a time.
class PendingCollectives {
 public:
  using Clock = std::chrono::steady_clock;

  /// Adds a collective. `begun`: event after which it may start. `what` names it in messages, such
  /// as "all_reduce of 10 Float".
  void add(std::shared_ptr<Event> begun, std::shared_ptr<Event> done, std::string what,
           Clock::time_point now);

  /// Removes completed collectives. Returns the oldest, as text with its number since the start
  /// (from 1), if it has made no progress for more than timeout_s. Its time starts when `begun` is
  /// reached and the previous collective has ended. So neither a long backward pass nor a long
  /// queue is an error.
  std::optional<std::string> overdue(Clock::time_point now, double timeout_s);

 private:
  struct Pending {
    std::shared_ptr<Event> begun, done;
    std::string what;
    int64_t number;
    Clock::time_point enqueued;
  };
  std::deque<Pending> pending_;
  int64_t num_added_ = 0;
  Clock::time_point last_progress_{};
};

}  // namespace lockstep::dist::nccl
