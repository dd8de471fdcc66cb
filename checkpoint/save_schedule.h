#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "checkpoint/checkpoint_options.h"
#include "dist/communicator.h"

namespace lockstep::checkpoint {

/// When to save: by steps a function of the step, by seconds rank 0's clock.
class SaveSchedule {
 public:
  /// Seconds of a clock that never goes back.
  using Clock = std::function<double()>;
  static double steady_seconds();

  /// Nothing is ever due where saves are off. `control` must outlive the schedule. The first
  /// interval starts now.
  SaveSchedule(const CheckpointOptions& options, dist::Communicator& control,
               Clock clock_s = steady_seconds);

  /// Whether this rank asks for a save after `step` updates: by steps every rank does; by seconds
  /// rank 0 alone, whose word the caller brings to the others (it travels with the step's votes).
  bool due_here(int64_t step) const;

  /// From now on by steps, equal on all ranks.
  void set_every_steps(int64_t every_steps) { every_steps_ = every_steps; }

  /// Starts the next interval; call after each save, good or failed.
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
