#pragma once

#include <filesystem>
#include <optional>

#include "base/step_clock.h"
#include "dist/communicator.h"
#include "train/evaluation/eval_options.h"
#include "train/evaluation/patience.h"
#include "train/evaluation/publish_options.h"

namespace lockstep::train {

/// Whether the weights after the clock's step are to be evaluated for the end of an epoch.
bool ends_eval_epoch(const EvalOptions& options, const StepClock& clock);

/// Whose evaluations are asked for.
struct PastOptions {
  std::filesystem::path project_dir;
  EvalOptions eval;
  PublishOptions publish;
  StepClock clock;            ///< where the run begins or goes on
  bool is_own_save = false;   ///< it goes on from a save in its own folder
  bool has_eval_data = true;  ///< false: nothing is ever evaluated
};

/// The evaluations that a run, or the one it goes on from, has made.
struct PastEvaluations {
  Patience patience;  ///< knows them, but for one that is missing
  /// The save that the run goes on from was to be evaluated, and to be published, and one of the
  /// two was not done: the run was stopped or killed before.
  bool is_missing = false;
  /// Of the update before it, by train/steps.csv; on rank 0.
  std::optional<double> train_loss;
};

/// As rank 0 finds them in train/evals.csv and saved_models, on every rank. After the recorder has
/// cut the record. Collective.
PastEvaluations past_evaluations(const PastOptions& options, dist::Communicator& control);

}  // namespace lockstep::train
