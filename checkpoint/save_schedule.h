#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "checkpoint/checkpoint_options.h"
#include "dist/communicator.h"

namespace lockstep::checkpoint {

/// Decides when to save. An interval in steps depends on the step only. An interval in seconds uses
/// rank 0's clock.
class SaveSchedule {
 public:
  /// Function that returns the seconds of a monotonic clock.
  using Clock = std::function<double()>;
  static double steady_seconds();

  /// Starts the first interval now. If checkpoints are off, due_here() is always false. `control`
  /// must outlive the schedule.
  SaveSchedule(const CheckpointOptions& options, dist::Communicator& control,
               Clock clock_s = steady_seconds);

  /// True if this rank requests a save after `step` updates. With steps, every rank requests it.
  /// With seconds, only rank 0 does. The caller then sends rank 0's request to the others with the
  /// step's votes.
  bool due_here(int64_t step) const;

  /// Switches to an interval in steps, which must be equal on all ranks.
  void set_every_steps(int64_t every_steps) { every_steps_ = every_steps; }

  /// Starts the next interval. Call it after each save, successful or failed.
  void saved() { last_s_ = clock_s_(); }

 private:
  bool enabled_ = true;
  int64_t every_steps_ = 0;  // 0: by seconds
  double every_s_ = 0;
  dist::Communicator& control_;
  Clock clock_s_;
  double last_s_ = 0;
};

}  // namespace lockstep::checkpoint
