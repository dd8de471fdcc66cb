#pragma once

#include <array>
#include <functional>

#include "train/evaluation/patience.h"
#include "train/evaluation/publish_options.h"
#include "train/evaluator.h"
#include "train/exports.h"
#include "train/hooks/hook.h"
#include "train/recorder.h"
#include "train/run_saves.h"
#include "train/step/stop_request.h"
#include "train/step/trainer.h"
#include "train/sync/replica_check.h"

namespace lockstep::train {

enum class RunEnd {
  kFinished,      ///< all steps done
  kStopped,       ///< saved on request: run again to go on
  kEnded,         ///< told to end without the time to save: the last commit stands
  kNotSaved,      ///< all steps done, but the final save failed
  kStoppedEarly,  ///< evaluations got no better (eval.patience); else as kFinished
  kNotExported,   ///< all steps done and saved, but the last export failed
};

/// Called before each step, on every rank, with the updates done so far. May look at the model, and
/// change it.
using StepHook = std::function<void(int64_t step, model::Model& model)>;

/// What the loop works with; all of it outlives the run.
struct RunParts {
  Trainer& trainer;
  TrainerParts& training;
  RunSaves& saves;
  ReplicaCheck& replica_check;      ///< of the ranks' state
  const ModelHandler& handler;      ///< of the same model
  const data::Dataset* eval_data;   ///< null: no evaluation
  data::LoaderOptions eval_loader;  ///< of eval_data
  EvalOptions eval;
  Patience patience;  ///< knows the evaluations before a resumed run
  Recorder& recorder;
  StopRequest& stop;
  double grace_s = 1.0;  ///< from the request to end until the launcher kills the process
  int64_t total_steps = 0;
  bool save_at_end = true;
  bool evaluates_first = false;  ///< the step that the run goes on from lacks its evaluation
  std::optional<double> loss_before = std::nullopt;  ///< of the update before that; rank 0 has it
  StepHook on_step;                                  ///< may be empty
  Hooks& hooks;                                      ///< of the training; the recorder is the first
  Hooks& eval_hooks;                                 ///< of each evaluation, likewise
  Exports* exports = nullptr;                        ///< where `publish` asks for any
  PublishOptions publish;
  /// For eval.strict_restore_on_switch: reads a committed save into the live state; collective,
  /// throws if that changes a bit.
  std::function<void(const std::string& save)> reload = {};
  /// Told of each change of a running job, which are equal on all ranks: for what the loop itself
  /// does not follow.
  std::function<void(const Change& change)> change = {};
};

struct RunResult {
  RunEnd end = RunEnd::kFinished;
  std::optional<EvalResult> eval;  ///< of the final weights
  std::string checkpoint;          ///< prefix of the last commit; empty: none
};

/// The loop around the step: save, evaluate, export, stop; in that order, on every rank at the same
/// step.
///
/// What is evaluated is the live model between two steps. Where an evaluation belongs to a save
/// (eval.on_save, export.after_evaluation), training waits at that step until the save is
/// committed; without a commit nothing is evaluated.
class Run {
 public:
  explicit Run(const RunParts& parts) : parts_(parts) {}

  RunResult go();

 private:
  RunResult train();
  StepReport step();
  RunResult stop(const StepReport& report);
  /// What rank 0 was asked to change, on all ranks. Collective.
  void make_changes();
  /// Holds until rank 0 is no more asked to, or a rank is to stop. Collective.
  void pause();
  /// Counts what this rank has received since the last call.
  void count_signals();
  RunResult finish();
  void note_write(const StepReport& report);
  void agree(const std::string& when);
  /// False if an evaluation was broken off.
  bool save_and_evaluate(const StepReport& report, bool is_last);
  /// Behind an evaluation that was broken off: no step follows it.
  RunResult stop_here();
  /// Nothing if it was broken off as the run was told to stop.
  std::optional<EvalResult> evaluate_now();
  void reload();
  void publish(const std::optional<EvalResult>& result);
  bool starts_evaluation(const StepReport& report);
  /// Whether evaluations belong to saves.
  bool evaluates_saves() const {
    return parts_.eval_data != nullptr && (parts_.eval.on_save || parts_.publish.after_evaluation);
  }
  Votes votes();
  bool is_told_to_stop() const { return parts_.stop.stop_asked() || parts_.stop.end_asked(); }
  bool can_save(const StepReport& report);

  RunParts parts_;
  std::array<int64_t, kCountedSignals.size()> counted_{};  ///< of kCountedSignals, told so far
  int64_t saves_voted_for_ = 0, saves_made_for_ = 0;       ///< of StopRequest::num_saves_asked()
  bool stops_no_more_ = false;  ///< told to stop in the last step: there is nothing left to stop
  bool check_is_owed_ = false;  ///< of the ranks' states, at the next step after which they agree
  std::string written_;         ///< what forward has written, for messages; empty: nothing
  bool save_is_owed_ = false;   ///< asked for at a step that did not count
  bool save_is_due_ = false;    ///< asked for at the last step, where finish() saves
  bool eval_is_owed_ = false;   ///< with the next save
  /// When training began, or resumed after an evaluation, by this rank's clock.
  double trains_since_s_ = checkpoint::SaveSchedule::steady_seconds();
  std::optional<double> evaluated_at_s_;  ///< when the last evaluation began, by this rank's clock
  int64_t evaluated_step_ = -1, published_step_ = -1;
  std::optional<EvalResult> last_eval_;
};

}  // namespace lockstep::train
