#pragma once

#include <array>
#include <functional>

#include "train/callback.h"
#include "train/evaluator.h"
#include "train/recorder.h"
#include "train/run_saves.h"
#include "train/step/replica_check.h"
#include "train/step/stop_request.h"
#include "train/step/trainer.h"

namespace lockstep::train {

enum class RunEnd {
  kFinished,  ///< all steps done
  kStopped,   ///< saved on request: run again to go on
  kEnded,     ///< told to end without the time to save: the last commit stands
  kNotSaved,  ///< all steps done, but the final save failed
};

/// Called before each step, on every rank, with the updates done so far. May look at the model, and
/// change it.
using StepHook = std::function<void(int64_t step, model::Model& model)>;

/// What the loop works with; all of it outlives the run.
struct RunParts {
  Trainer& trainer;
  TrainerParts& training;
  RunSaves& saves;
  ReplicaCheck& replica_check;     ///< of the ranks' state
  const data::Dataset* eval_data;  ///< null: no evaluation
  EvalOptions eval;
  Recorder& recorder;
  const StopRequest& stop;
  double grace_s = 1.0;  ///< from the request to end until the launcher kills the process
  int64_t total_steps = 0;
  bool save_at_end = true;
  StepHook on_step;  ///< may be empty
  Callbacks& callbacks;
};

struct RunResult {
  RunEnd end = RunEnd::kFinished;
  std::optional<EvalResult> eval;  ///< of the final weights
  std::string checkpoint;          ///< prefix of the last commit; empty: none
};

/// The loop around the step: save, evaluate, stop; in that order, on every rank at the same step.
class Run {
 public:
  explicit Run(const RunParts& parts) : parts_(parts) {}

  RunResult go();

 private:
  RunResult train();
  RunResult stop(const StepReport& report);
  /// Counts what this rank has received since the last call.
  void count_signals();
  RunResult finish();
  void agree(const std::string& when);
  EvalResult evaluate_now();
  bool evaluation_due(const StepReport& report) const;
  Votes votes() const;
  bool can_save(const StepReport& report);

  RunParts parts_;
  std::array<int64_t, kCountedSignals.size()> counted_{};  ///< of kCountedSignals, told so far
  bool save_is_owed_ = false;  ///< asked for at a step that did not count
  bool save_is_due_ = false;   ///< asked for at the last step, where finish() saves
};

}  // namespace lockstep::train
