#pragma once

#include <filesystem>
#include <optional>

#include "base/step_clock.h"
#include "dist/communicator.h"
#include "train/evaluation/eval_options.h"
#include "train/evaluation/patience.h"
#include "train/evaluation/publish_options.h"

namespace lockstep::train {

/// True if an evaluation at the end of an epoch is due after the clock's step.
bool ends_eval_epoch(const EvalOptions& options, const StepClock& clock);

/// Inputs of past_evaluations().
struct PastOptions {
  std::filesystem::path project_dir;
  EvalOptions eval;
  PublishOptions publish;
  StepClock clock;            ///< position where the run begins or resumes
  bool is_own_save = false;   ///< it resumes from a checkpoint in its own folder
  bool has_eval_data = true;  ///< false: evaluations never happen
};

/// Evaluations of this run, or of the run that it resumes.
struct PastEvaluations {
  Patience patience;  ///< includes all past evaluations, except a missing one
  /// True if the checkpoint that the run resumes from should have been evaluated (and published),
  /// but the run was stopped or killed before.
  bool is_missing = false;
  /// Loss of the last update before it, from train/steps.csv; on rank 0.
  std::optional<double> train_loss;
};

/// Finds past evaluations in train/evals.csv and saved_models. Rank 0 reads, and all ranks get the
/// result. Call it after the recorder has truncated the record. Collective.
PastEvaluations past_evaluations(const PastOptions& options, dist::Communicator& control);

}  // namespace lockstep::train
