#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "dist/nccl/gpu_calls.h"

namespace lockstep::dist::nccl {

/// The collectives of a communicator that have been enqueued and are not known to be done, oldest
/// first. One thread at a time.
class PendingCollectives {
 public:
  using Clock = std::chrono::steady_clock;

  /// `begun`: what it is held behind; `what` names the collective in messages, e.g. "all_reduce of
  /// 10 Float".
  void add(std::shared_ptr<Event> begun, std::shared_ptr<Event> done, std::string what,
           Clock::time_point now);

  /// Forgets those that are done. If nothing has ended for more than timeout_s while one was
  /// waited for: the oldest, as text, with its number since the start (from 1). A collective's time
  /// begins when what it is held behind is done and the one before it has ended, so neither a long
  /// backward pass nor a long queue is a fault.
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
