#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "checkpoint/checkpoint_options.h"
#include "dist/communicator.h"

namespace lockstep::checkpoint {

/// When to save, the same answer on every rank. Steps are a pure function; seconds are rank 0's
/// clock, agreed.
class SaveSchedule {
 public:
  /// Seconds of a clock that never goes back.
  using Clock = std::function<double()>;
  static double steady_seconds();

  /// `control` must outlive the schedule. The first interval starts now.
  SaveSchedule(const CheckpointOptions& options, dist::Communicator& control,
               Clock clock_s = steady_seconds);

  /// Whether a save is due after `step` updates. Collective if by_seconds(): call it at the same
  /// steps on every rank.
  bool due(int64_t step);
  /// This rank's opinion without a message: the truth when by steps; when by seconds, rank 0's word
  /// is the answer and other ranks say no. For callers that agree on it together with other things.
  bool due_here(int64_t step) const;
  bool by_seconds() const { return every_steps_ == 0; }

  /// Starts the next interval; call after each save, good or failed.
  void saved() { last_s_ = clock_s_(); }

 private:
  int64_t every_steps_ = 0;  // 0: by seconds
  double every_s_ = 0;
  dist::Communicator& control_;
  Clock clock_s_;
  double last_s_ = 0;
};

}  // namespace lockstep::checkpoint
