#pragma once

#include <functional>

#include "base/step_clock.h"
#include "data/loader.h"
#include "dist/reducer/gradient_reducer.h"
#include "model/model.h"
#include "optim/clip_gradients.h"
#include "optim/ema.h"
#include "optim/flat_params.h"
#include "optim/optimizer.h"
#include "recal/scheduled_modifier_manager.h"
#include "train/gradients/batch_statistics.h"
#include "train/gradients/elastic.h"
#include "train/gradients/params_watch.h"
#include "train/gradients/recorded_pass.h"
#include "train/gradients/step_tensors.h"
#include "train/gradients/training_pass.h"
#include "train/loss/loss.h"
#include "train/loss/loss_scale.h"
#include "train/step/data_wait.h"
#include "train/step/moved_buffers.h"
#include "train/step/rate_schedule.h"
#include "train/step/skipped_updates.h"
#include "train/step/step_report.h"
#include "train/step/stop_request.h"
#include "train/step/train_options.h"
#include "train/sync/local_steps.h"
#include "train/sync/step_limits.h"

namespace lockstep::train {

/// What a trainer works with; all of it outlives the trainer.
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
  int64_t bucket_bytes = 4194304;   ///< of gradients that travel together
  optim::ClipOptions clip;          ///< of the mean gradients
  LossScale* loss_scale = nullptr;  ///< null: losses are not scaled
  /// Called before weights, moments or masks change: a save may still be reading them. May be
  /// empty.
  std::function<void()> before_changes = {};
  bool elastic = false;               ///< the same bits on 1, 2, 4 and 8 ranks (elastic.h)
  int64_t max_skipped_samples = 0;    ///< damaged samples of an epoch, over all ranks
  optim::Ema* ema = nullptr;          ///< null: weights are not averaged over steps
  LocalSteps* local_steps = nullptr;  ///< null: ranks reduce at every step; else `reducer` is of
                                      ///< this rank alone
  StepTensors* tensors = nullptr;     ///< where each step leaves what went through the network;
                                      ///< null: nobody reads it
  StopRequest* stop = nullptr;        ///< ends waits for data (train/step/data_wait.h); null, and
                                      ///< with local steps: nothing does
  double data_patience_s = 1;         ///< such a wait is not ended before
  std::shared_ptr<DeviceGraph> graph = nullptr;  ///< by which passes are recorded
                                                 ///< (train/gradients/choose_graph.h); null: not

  /// Whom the parts of one step ask about the other ranks: with local steps nobody.
  dist::Communicator& peers() const {
    return local_steps != nullptr ? local_steps->alone() : control;
  }
};

/// The training step. Every rank calls step() the same number of times; one caller at a time.
///
///   next batch -> what is due by the recipe -> forward, loss, backward by micro-batch -> reduce ->
///   clip -> update -> masks -> moving statistics -> EMA
///
/// Nothing here is decided by one rank: the loss, the verdict on non-finite values and the votes
/// come out of the same reduction as the gradients, and the loss scale follows from the verdict.
/// With local steps (train/sync/local_steps.h) votes and limits wait for the next mean, and a rank
/// whose own update is not finite skips it alone.
class Trainer {
 public:
  /// Collective where train.batch_norm is sync (train/gradients/batch_statistics.h).
  Trainer(const TrainerParts& parts, const TrainOptions& options);

  /// What this rank asks for. Called once in each step, when its gradients are there.
  using Ask = std::function<Votes()>;

  /// One update. Throws Error(kNonFinite).everywhere() after too many skipped updates in a row,
  /// Error(kBadData).everywhere() after too many damaged samples,
  /// Error(kDisagree) if new masks differ, Error(kUnavailable) if a peer is gone.
  StepReport step_asking(const Ask& ask);
  StepReport step(const Votes& votes) {
    return step_asking([&votes] { return votes; });
  }

  /// After the last step: what the recipe closes the run with. Collective, as step().
  recal::Applied close();

 private:
  /// Brings optimizer, buffers and reducer in line with what the recipe changed.
  void apply_changes(const recal::Applied& due);
  /// Forward and backward of this rank's samples.
  LossSum compute_gradients(const data::Batch& batch, metrics::PhaseSeconds* phases);
  /// Share of the targets of all ranks, of a local step this rank's, that count in the loss; NaN if
  /// none does. Collective where targets may be ignored, but in a local step.
  double counted_share(const data::Batch& batch) const;
  double loss_divisor() const;
  /// Gradients of these samples, by micro-batch, and the sum of their losses. `weight`: what each
  /// loss is multiplied by before backward. `completes`: these are all of this rank's.
  /// `first_sample`: place of the first in the global batch.
  LossSum gradients_of(const data::Samples& samples, int64_t first_sample, double weight,
                       bool completes, metrics::PhaseSeconds* phases);
  int64_t loss_scale() const { return parts_.loss_scale ? parts_.loss_scale->value() : 1; }
  dist::StepRequests requests() const {
    return {.squared_grad_norm = parts_.clip.norm.has_value(),
            .by_bucket = !parts_.clip.norm && !parts_.clip.value};
  }
  bool stops_before_recipe(StepReport* report);
  /// All is as before the step, but for the gradients.
  void leave_out(StepReport* report);
  /// Makes what the recipe changes at this step, before the forward pass; false where a stop comes
  /// before it, and the report says so.
  bool apply_recipe(StepReport* report);
  void begin_report(const data::Batch& batch, StepReport* report) const;
  /// Waits for the mean gradients of all ranks, and what came with them.
  void reduce_gradients(const data::Batch& batch, const LossSum& loss, const Ask& ask,
                        StepReport* report);
  /// Whether the host goes on while a GPU computes: there is one, and each step's numbers travel.
  bool runs_ahead() const {
    return !parts_.flat_params.device().is_cpu() && parts_.local_steps == nullptr && !shard_tree_;
  }
  dist::GradientReducer::EarlyUpdate early_update(const optim::StepRates& rates);
  /// Whether the update counts; throws where too many samples are damaged, or too many updates in a
  /// row did not count.
  void check_finite(StepReport* report);
  /// Tells of a skipped update. Collective, unless steps are local.
  void tell_skipped(const StepReport& report);
  /// Parameters that no rank's backward reached keep their values and slots. Collective.
  void leave_out_unreached(const dist::GlobalStepStats& totals);
  void update(StepReport* report);
  /// Both, and what local steps do behind them; the clock's next step begins.
  void update_weights(StepReport* report);
  /// After a local step: the mean, where it is due, and what was left to it.
  void join_local_steps(StepReport* report);
  void complete_report(StepReport* report) const;
  /// Before weights, moments or masks are changed or looked at from the host: they are whole, and
  /// no save still copies them, on any rank where they are shared. Collective there.
  void before_changes() {
    parts_.reducer.settle();
    if (parts_.before_changes) parts_.before_changes();
    parts_.reducer.begin_changes();
  }

  TrainerParts parts_;
  TrainOptions options_;
  BatchStatistics statistics_;
  MovedBuffers moved_buffers_;
  std::unique_ptr<ParamsWatch> watch_;  ///< of a user's network; null: of another
  TrainingPass pass_;
  std::optional<RecordedPass> recorded_pass_;
  std::optional<ShardTree> shard_tree_;  ///< where elastic
  bool masks_are_handed_ = false;        ///< not before the first step: a restore may set masks
  StepLimits limits_;
  DataWait data_wait_;
  bool is_updated_ = false;  ///< in this step, by early_update()
  double work_s_ = 0;        ///< of the step before: on a GPU this one's is known too late
  LossSum loss_;             ///< of this step
  SkippedUpdates skipped_updates_;
  double counted_share_ = 1;  ///< of the step's targets (counted_share())
};

}  // namespace lockstep::train
