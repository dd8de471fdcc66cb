#pragma once

#include <functional>

#include "checkpoint/save_schedule.h"
#include "checkpoint/saver.h"
#include "train/agreement.h"
#include "train/evaluator.h"
#include "train/recorder.h"
#include "train/stop_request.h"
#include "train/trainer.h"

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
  checkpoint::Saver& saver;
  checkpoint::SaveSchedule& schedule;
  StateSource state;               ///< what a save holds
  Agreement& agreement;            ///< of that state over the ranks
  const data::Dataset* eval_data;  ///< null: no evaluation
  EvalOptions eval;
  Recorder& recorder;
  const StopRequest& stop;
  double grace_s = 1.0;  ///< from the request to end until the launcher kills the process
  int64_t total_steps = 0;
  bool save_at_end = true;
  int64_t last_saved_step = -1;  ///< of the save in the own folder that the run goes on from
  std::string last_commit;       ///< prefix of the save that the run goes on from, if any
  StepHook on_step;              ///< may be empty
};

struct RunResult {
  RunEnd end = RunEnd::kFinished;
  std::optional<EvalResult> eval;  ///< of the final weights
  std::string checkpoint;          ///< prefix of the last commit; empty: none
};

/// The loop around the step: save, evaluate, stop; in that order, on every rank at the same step.
class Run {
 public:
  explicit Run(const RunParts& parts)
      : parts_(parts), last_commit_(parts.last_commit), last_saved_step_(parts.last_saved_step) {}

  RunResult go();

 private:
  RunResult stop(const StepReport& report);
  void tell_signals();
  RunResult finish();
  void save();
  void agree(const std::string& when);
  EvalResult evaluate_now();
  bool evaluation_due(const StepReport& report) const;
  Votes votes() const;
  bool save_fits_the_grace() const;

  RunParts parts_;
  std::string last_commit_;
  int64_t last_saved_step_;
  int64_t agreed_step_ = -1;  ///< at which the ranks' state was compared, and is the same since
  bool last_save_ok_ = true;
  bool save_is_due_ = false;  ///< asked for at the last step, where finish() saves
  double longest_save_s_ = 0;
};

}  // namespace lockstep::train
