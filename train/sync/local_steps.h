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

/// Components of local steps; all outlive them.
struct LocalStepsParts {
  dist::Communicator& comm;  ///< of all ranks; only local steps use it
  optim::FlatParams& flat_params;
  optim::Optimizer& optimizer;
  optim::Ema* ema = nullptr;  ///< null: none
  const model::Model& model;
  const recal::Timeline& timeline;
  const StepClock& clock;
  int64_t sync_every = 1;
  int64_t total_steps = 0;
  int64_t bucket_bytes = 4194304;   ///< message size for small tensors
  bool statistics_of_root = false;  ///< use rank 0's moving statistics, not the mean
};

/// Local steps with periodic averages (`sync.sync_replicas: false`, "local SGD"). Between two
/// averages each rank updates its own weights with its own samples, without messages. An average
/// makes weights, optimizer slots, moving statistics and the EMA equal on all ranks, bit for bit.
/// It is the sum in rank order over N; each rank has the same weight.
///
/// Parameters frozen by the recipe or the run file are equal already, and their slots too; they are
/// not sent. A user's network may change its parameters without gradients in its own code: they are
/// sent.
///
/// Slots are averaged too, so that a save contains the one state from which all ranks continue.
/// Sources: Stich, arXiv 1805.09767 (weights); Yu et al., arXiv 1905.03817 (momentum).
///
/// A rank's gradient is N times the contribution of its samples to the gradient of the mean loss
/// over the global batch. So one local step of sgd between averages equals the synchronous step,
/// for any number of samples on each rank.
class LocalSteps {
 public:
  explicit LocalSteps(const LocalStepsParts& parts) : parts_(parts) {}

  int num_ranks() const { return parts_.comm.world_size(); }
  /// Communicator that replaces the other ranks within a step: a world of this rank alone.
  dist::Communicator& alone() { return alone_; }

  /// True if an average follows the update number `step`. That is every sync_every steps, and at
  /// the end of each epoch and of the run. It is also before a step at which the recipe changes
  /// masks, weights or the trained set. A function of the step, equal on all ranks.
  bool mean_after(int64_t step) const;

  /// Keeps this rank's contributions for the next average, and returns those for the step's own
  /// reduction, without votes and damaged samples.
  dist::LocalStepStats take(const dist::LocalStepStats& share);
  /// Ends a step. updated: the update counted. votes: further votes for the average.
  void end_step(bool updated, uint32_t votes);

  /// Averages the state of all ranks and returns the totals since the last average. These are loss
  /// over the samples of the updates that counted, votes, damaged samples. num_nonfinite_ranks
  /// counts the ranks without such an update. Collective.
  dist::GlobalStepStats average();

 private:
  struct State {
    std::vector<at::Tensor> means;       // float32, to be averaged
    std::vector<at::Tensor> statistics;  // floats, complex ones as pairs
    std::vector<at::Tensor> counts;      // int64, reduced to the maximum
  };

  StateList moving_slots();
  State state();
  void average_statistics(const std::vector<at::Tensor>& statistics);
  void take_largest(const std::vector<at::Tensor>& counts);

  LocalStepsParts parts_;
  dist::SelfCommunicator alone_;
  dist::LocalStepStats step_;     // of the current step
  dist::LocalStepStats pending_;  // since the last average
  bool has_updated_ = false;      // since the last average
};

}  // namespace lockstep::train
