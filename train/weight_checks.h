#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/tensors/state_list.h"
#include "dist/communicator.h"
#include "model/model.h"

/// Checks of the state in training: equal on all ranks, and finite.
namespace lockstep::train {

/// Function that lists the state to save, called for each save: freezing moves tensors.
using StateSource = std::function<StateList()>;

/// Verifies that ranks have the same state, bit for bit: parameters, optimizer state, masks,
/// observers, positions and the timeline. Costs one digest per tensor, at memory speed, and two
/// small all-reduces. For saves, the saver compares, in parallel to training
/// (SaverOptions::compare_replicas).
class ReplicaCheck {
 public:
  /// every_steps = 0: only when require() is called. `control` must outlive this.
  ReplicaCheck(dist::Communicator& control, StateSource state, int64_t every_steps)
      : control_(control), state_(std::move(state)), every_steps_(every_steps) {}

  bool is_on() const { return every_steps_ > 0; }
  bool is_due(int64_t step) const { return is_on() && step % every_steps_ == 0; }

  /// Throws Error(kDisagree).everywhere() naming the first tensor that differs, the ranks, the
  /// first index and each rank's value. Collective. `when`: "at step 500".
  void require(std::string_view when);

  /// Counts a comparison made by a save (SaverOptions::compare_replicas).
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

/// Checks weights and buffers in one pass, before a save and at the end of training. Updates with a
/// non-finite loss or gradients are skipped, but a finite update can still overflow weights, and
/// training cannot recover from that. Throws Error(kNonFinite) on all ranks if a weight of any rank
/// is not finite, or a buffer contains NaN (infinity may be a mask). `last_commit`: the last
/// committed checkpoint, empty if none. Collective.
void require_finite_weights(const model::Model& model, int64_t step, const std::string& last_commit,
                            dist::Communicator& control);

}  // namespace lockstep::train
