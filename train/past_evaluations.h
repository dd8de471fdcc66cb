#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/step_clock.h"
#include "dist/communicator.h"
#include "train/eval_options.h"

/// Earlier evaluations of a run: eval.patience, and what a resumed run reads from its files.
namespace lockstep::train {

/// True if an evaluation's value is better than the best so far, if there is one. `metric`:
/// eval.loss (lower is better) or eval.accuracy. An equal or non-finite value is not better.
bool is_better(const std::string& metric, double value, const std::optional<double>& best);

/// Tracks the best evaluation and the number of evaluations since without improvement
/// (eval.patience). Depends on the values alone, so ranks with equal values decide alike.
class Patience {
 public:
  /// metric: as in is_better(). limit: number of evaluations; 0: never exhausted.
  explicit Patience(std::string metric = "eval.loss", int64_t limit = 0)
      : metric_(std::move(metric)), limit_(limit) {}

  const std::string& metric() const { return metric_; }
  int64_t limit() const { return limit_; }
  /// Adds a value; true if it is the best so far.
  bool add(double value);
  /// True if the last `limit` evaluations brought no improvement.
  bool is_exhausted() const { return limit_ > 0 && num_without_ >= limit_; }

 private:
  std::string metric_;
  int64_t limit_;
  int64_t num_without_ = 0;
  std::optional<double> best_;
};

/// True if an evaluation at the end of an epoch is due after the clock's step.
bool ends_eval_epoch(const EvalOptions& options, const StepClock& clock);

/// Inputs of past_evaluations().
struct PastOptions {
  std::filesystem::path project_dir;
  EvalOptions eval;
  PublishOptions publish;
  StepClock clock;              ///< position where the run begins or resumes
  bool is_own_save = false;     ///< it resumes from a checkpoint in its own folder
  bool is_from_memory = false;  ///< or from the memory of ranks, with or without a checkpoint
  bool has_eval_data = true;    ///< false: evaluations never happen
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
