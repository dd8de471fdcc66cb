#pragma once

#include "base/step_clock.h"
#include "data/loader.h"
#include "dist/gradient_reducer.h"
#include "model/model.h"
#include "optim/optimizer.h"
#include "optim/param_arena.h"
#include "recal/scheduled_modifier_manager.h"
#include "train/rate_schedule.h"
#include "train/step_report.h"
#include "train/stop_request.h"
#include "train/train_options.h"

namespace lockstep::train {

/// What a trainer works with; all of it outlives the trainer.
struct TrainerParts {
  dist::Communicator& control;
  data::Loader& loader;
  model::Model& model;
  optim::ParamArena& arena;
  dist::GradientReducer& reducer;
  optim::Optimizer& optimizer;
  recal::ScheduledModifierManager& recipe;
  const RateSchedule& rates;
  StepClock& clock;
  int64_t bucket_bytes = 26214400;  ///< of gradients that travel together
};

/// The training step. Every rank calls step() the same number of times; one caller at a time.
///
///   what is due by the recipe -> next batch -> forward, loss, backward by micro-batch -> reduce ->
///   update -> masks
///
/// Nothing here is decided by one rank: the loss, the verdict on non-finite values and the votes
/// come out of the same reduction as the gradients.
class Trainer {
 public:
  Trainer(const TrainerParts& parts, const TrainOptions& options)
      : parts_(parts), options_(options) {}

  /// One update. Throws Error(kNonFinite).everywhere() after too many skipped updates in a row,
  /// Error(kDisagree) if new masks differ, Error(kUnavailable) if a peer is gone.
  StepReport step(const Votes& votes);

  /// After the last step: what the recipe closes the run with. Collective, as step().
  recal::Applied close();

 private:
  /// Brings optimizer and buffers in line with what the recipe changed.
  void follow(const recal::Applied& due);
  /// Forward and backward of this rank's samples; returns the sum of their losses.
  double compute_gradients(const data::Batch& batch, metrics::PhaseSeconds* phases);
  void update(const dist::StepTotals& totals, StepReport* report);

  TrainerParts parts_;
  TrainOptions options_;
  int64_t num_skipped_in_a_row_ = 0;
};

}  // namespace lockstep::train
