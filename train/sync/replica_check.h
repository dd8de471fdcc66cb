#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "base/tensors/state_list.h"
#include "dist/communicator.h"

namespace lockstep::train {

/// What a save holds, listed anew: tensors move when parameters are frozen.
using StateSource = std::function<StateList()>;

/// Proves that the ranks hold the same: parameters, optimizer state, masks, observers, positions
/// and the timeline, bit for bit. One digest a tensor at memory speed, and one small all-reduce.
/// Saves are compared by the saver, beside training (SaverOptions::compare_replicas).
class ReplicaCheck {
 public:
  /// `every_steps` 0: only when require() is called. `control` must outlive it.
  ReplicaCheck(dist::Communicator& control, StateSource state, int64_t every_steps)
      : control_(control), state_(std::move(state)), every_steps_(every_steps) {}

  bool is_on() const { return every_steps_ > 0; }
  bool is_due(int64_t step) const { return is_on() && step % every_steps_ == 0; }

  /// Throws Error(kDisagree).everywhere() naming the first tensor that differs, the ranks, the
  /// first index and each rank's value. Collective. `when`: "at step 500".
  void require(std::string_view when);

  /// Counts a comparison that a save has made (SaverOptions::compare_replicas).
  void count(double seconds) {
    ++num_checks_;
    seconds_ += seconds;
  }

  int64_t num_checks() const { return num_checks_; }
  double seconds() const { return seconds_; }  ///< spent in all checks, on this rank

 private:
  dist::Communicator& control_;
  StateSource state_;
  int64_t every_steps_;
  int64_t num_checks_ = 0;
  double seconds_ = 0;
};

}  // namespace lockstep::train
