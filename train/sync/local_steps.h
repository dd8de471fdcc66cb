#pragma once

#include <cstdint>
#include <vector>

#include "base/step_clock.h"
#include "dist/communicator.h"
#include "dist/reducer/step_stats.h"
#include "dist/self_communicator.h"
#include "model/model.h"
#include "optim/ema.h"
#include "optim/flat_params.h"
#include "optim/optimizer.h"
#include "recal/timeline/timeline.h"

namespace lockstep::train {

/// What local steps work with; all of it outlives them.
struct LocalStepsParts {
  dist::Communicator& comm;  ///< of all ranks; local steps alone use it
  optim::FlatParams& flat_params;
  optim::Optimizer& optimizer;
  optim::Ema* ema = nullptr;  ///< null: none
  const model::Model& model;
  const recal::Timeline& timeline;
  const StepClock& clock;
  int64_t sync_every = 1;
  int64_t total_steps = 0;
  int64_t bucket_bytes = 4194304;   ///< of small tensors that travel together
  bool statistics_of_root = false;  ///< moving statistics are rank 0's, not the mean
};

/// Local steps and their means (`sync.sync_replicas: false`, "local SGD"). Between two means each
/// rank updates its own weights by its own samples, and no message is sent. A mean makes weights,
/// optimizer slots, moving statistics and the average of the weights (EMA) equal on all ranks, bit
/// for bit: the sum in rank order over N, each rank counting the same.
///
/// What the recipe or the run file froze is equal already and does not travel: parameters and their
/// slots. A user's network may move its parameters without gradients in its own code: they travel.
///
/// Slots are averaged too: a save then holds the one state from which all ranks go on. Sources:
/// Stich, arXiv 1805.09767 (weights); Yu et al., arXiv 1905.03817 (momentum).
///
/// A rank's gradient is N times what its samples add to the gradient of the mean loss over the
/// global batch. So one local step of sgd between means is the synchronous step, whatever each
/// rank's number of samples.
class LocalSteps {
 public:
  explicit LocalSteps(const LocalStepsParts& parts) : parts_(parts) {}

  int num_ranks() const { return parts_.comm.world_size(); }
  /// What parts of a step talk to instead of the other ranks: the world of this rank.
  dist::Communicator& alone() { return alone_; }

  /// Whether a mean follows the update that makes `step` updates: every sync_every steps, at the
  /// end of each epoch and of the run, and where the recipe changes masks, weights or what is
  /// trained before the next one. A function of the step, equal on all ranks.
  bool mean_after(int64_t step) const;

  /// What this rank brings to a step goes to the next mean; returns what is left for the step's own
  /// reduction: no vote and no damaged sample acts before that.
  dist::LocalStepStats take(const dist::LocalStepStats& share);
  /// After the update: whether it counted. `votes`: further ones, for the mean.
  void end_step(bool updated, uint32_t votes);

  /// Averages the state of all ranks and returns what they did since the last mean: loss over the
  /// samples of the updates that counted, votes, damaged samples. num_nonfinite_ranks counts the
  /// ranks without such an update. Collective.
  dist::GlobalStepStats average();

 private:
  struct State {
    std::vector<at::Tensor> means;       // float32, of which the mean is taken
    std::vector<at::Tensor> statistics;  // floats, complex ones as pairs
    std::vector<at::Tensor> counts;      // int64, of which the largest is taken
  };

  StateList moving_slots();
  State state();
  void average_statistics(const std::vector<at::Tensor>& statistics);
  void take_largest(const std::vector<at::Tensor>& counts);

  LocalStepsParts parts_;
  dist::SelfCommunicator alone_;
  dist::LocalStepStats step_;     // of the step under way
  dist::LocalStepStats pending_;  // since the last mean
  bool has_updated_ = false;      // since the last mean
};

}  // namespace lockstep::train
