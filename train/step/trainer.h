#pragma once

#include <functional>

#include "base/step_clock.h"
#include "data/loader.h"
#include "dist/reducer/gradient_reducer.h"
#include "model/model.h"
#include "optim/ema.h"
#include "optim/flat_params.h"
#include "optim/optimizer.h"
#include "recal/scheduled_modifier_manager.h"
#include "train/step/apply_recipe.h"
#include "train/step/loss.h"
#include "train/step/module_buffers.h"
#include "train/step/recorded_pass.h"
#include "train/step/skipped_steps.h"
#include "train/step/step_report.h"
#include "train/step/stop_request.h"
#include "train/step/sync_modes.h"
#include "train/step/train_options.h"
#include "train/step/training_pass.h"

namespace lockstep::train {

/// Components of a trainer; all outlive it.
struct TrainerParts {
  dist::Communicator& control;
  data::Loader& loader;
  model::Model& model;
  optim::FlatParams& flat_params;
  dist::GradientReducer& reducer;
  optim::Optimizer& optimizer;
  recal::ScheduledModifierManager& recipe;
  const RateSchedule& rates;
  const Loss& loss;
  StepClock& clock;
  int64_t bucket_bytes = 4194304;   ///< size of gradient buckets
  optim::ClipOptions clip;          ///< of the mean gradients
  LossScale* loss_scale = nullptr;  ///< null: losses are not scaled
  /// Function called before weights, moments or masks change, since a save may still be reading
  /// them. May be empty.
  std::function<void()> before_changes = {};
  bool elastic = false;               ///< the same bits on 1, 2, 4 and 8 ranks (sync_modes.h)
  int64_t max_skipped_samples = 0;    ///< limit on damaged samples of an epoch, over all ranks
  optim::Ema* ema = nullptr;          ///< null: no moving average of the weights
  LocalSteps* local_steps = nullptr;  ///< null: ranks reduce at every step; else `reducer` covers
                                      ///< this rank alone
  StepTensors* tensors = nullptr;     ///< receives the tensors of each step; null: not kept
  StopRequest* stop = nullptr;  ///< ends waits for data (train/step/skipped_steps.h); null, or
                                ///< local steps: waits have no end
  double data_patience_s = 1;   ///< seconds before which such a wait is not ended
  std::shared_ptr<DeviceGraph> graph = nullptr;  ///< graph for recorded passes
                                                 ///< (train/step/recorded_pass.h); null: none

  /// Communicator for agreement within a step; a single-rank one when local steps are on.
  dist::Communicator& peers() const {
    return local_steps != nullptr ? local_steps->alone() : control;
  }
};

/// The training step. Every rank calls step() equally often; one caller at a time.
///
///   next batch -> what is due by the recipe -> forward, loss, backward by micro-batch -> reduce ->
///   clip -> update -> masks -> moving statistics -> EMA
///
/// No rank decides alone. The loss, the decision on non-finite values and the votes come from the
/// same reduction as the gradients. The loss scale follows from that decision. With local steps
/// (train/step/sync_modes.h), votes and limits wait for the next average, and a rank whose own
/// update is not finite skips it alone.
class Trainer {
 public:
  /// Collective if train.batch_norm is sync (train/step/module_buffers.h).
  Trainer(const TrainerParts& parts, const TrainOptions& options);

  /// Function that returns this rank's votes. Called once in each step, when its gradients are
  /// complete.
  using Ask = std::function<Votes()>;

  /// Runs one update. Throws Error(kNonFinite).everywhere() after too many skipped updates in a
  /// row, Error(kBadData).everywhere() after too many damaged samples. Throws Error(kDisagree) if
  /// new masks differ, Error(kUnavailable) if a peer is gone.
  StepReport step_asking(const Ask& ask);
  StepReport step(const Votes& votes) {
    return step_asking([&votes] { return votes; });
  }

  /// Applies the recipe's closing actions after the last step. Collective, like step().
  recal::Applied close();

 private:
  /// Applies the recipe's changes to optimizer, buffers and reducer.
  void apply_changes(const recal::Applied& due);
  /// Runs forward and backward on this rank's samples.
  LossSum compute_gradients(const data::Batch& batch, metrics::PhaseSeconds* phases);
  /// Returns the share of targets that count in the loss, over all ranks (in a local step: this
  /// rank's); NaN if none counts. Collective if targets may be ignored, except in a local step.
  double counted_share(const data::Batch& batch) const;
  double loss_divisor() const;
  /// Computes gradients of these samples, by micro-batch, and returns the sum of their losses.
  /// `weight`: factor on each loss before backward. `completes`: these are all of this rank's
  /// samples. `first_sample`: index of the first in the global batch.
  LossSum gradients_of(const data::Samples& samples, int64_t first_sample, double weight,
                       bool completes, metrics::PhaseSeconds* phases);
  int64_t loss_scale() const { return parts_.loss_scale ? parts_.loss_scale->value() : 1; }
  dist::StepRequests requests() const {
    return {.squared_grad_norm = parts_.clip.norm.has_value(),
            .by_bucket = !parts_.clip.norm && !parts_.clip.value};
  }
  bool stops_before_recipe(StepReport* report);
  /// Abandons the step: restores all state except the gradients.
  void leave_out(StepReport* report);
  /// Applies the recipe's changes at this step, before the forward pass. Returns false if a stop
  /// comes first; the report then says so.
  bool apply_recipe(StepReport* report);
  void begin_report(const data::Batch& batch, StepReport* report) const;
  /// Waits for the mean gradients of all ranks and the step statistics.
  void reduce_gradients(const data::Batch& batch, const LossSum& loss, const Ask& ask,
                        StepReport* report);
  /// True if the host may run ahead of a GPU: there is one, ranks reduce at each step, and the run
  /// is not elastic.
  bool runs_ahead() const {
    return !parts_.flat_params.device().is_cpu() && parts_.local_steps == nullptr && !shard_tree_;
  }
  dist::GradientReducer::EarlyUpdate early_update(const optim::StepRates& rates);
  /// Decides whether the update counts. Throws after too many damaged samples, or too many skipped
  /// updates in a row.
  void check_finite(StepReport* report);
  /// Logs a skipped update. Collective, unless steps are local.
  void tell_skipped(const StepReport& report);
  /// Keeps values and slots of parameters that no rank's backward reached. Collective.
  void leave_out_unreached(const dist::GlobalStepStats& totals);
  void update(StepReport* report);
  /// Runs check_finite() and update(), then averages local steps if due, and advances the clock.
  void update_weights(StepReport* report);
  /// Averages after a local step if due, and handles the requests that waited for that.
  void join_local_steps(StepReport* report);
  void complete_report(StepReport* report) const;
  /// Prepares a change of weights, moments or masks, or a look at them from the host. Waits until
  /// they are complete and no save still copies them, for shared weights on all ranks. Collective
  /// then.
  void before_changes() {
    parts_.reducer.settle();
    if (parts_.before_changes) parts_.before_changes();
    parts_.reducer.begin_changes();
  }

  TrainerParts parts_;
  TrainOptions options_;
  BatchStatistics statistics_;
  MovedBuffers moved_buffers_;
  std::unique_ptr<ParamsWatch> watch_;  ///< for a user's network; null: for other networks
  TrainingPass pass_;
  std::optional<RecordedPass> recorded_pass_;
  std::optional<ShardTree> shard_tree_;  ///< if elastic
  bool masks_are_handed_ = false;  ///< false before the first step, since a restore may set masks
  StepLimits limits_;
  DataWait data_wait_;
  bool is_updated_ = false;  ///< by early_update(), in this step
  double work_s_ = 0;        ///< of the previous step: on a GPU that of this step is known too late
  LossSum loss_;             ///< of this step
  SkippedUpdates skipped_updates_;
  double counted_share_ = 1;  ///< of the step's targets; see counted_share()
};

}  // namespace lockstep::train
