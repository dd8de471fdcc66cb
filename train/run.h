#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/stop_request.h"
#include "train/eval_options.h"
#include "train/evaluator.h"
#include "train/hook.h"
#include "train/past_evaluations.h"
#include "train/recorder.h"
#include "train/run_saves.h"
#include "train/step/trainer.h"
#include "train/weight_checks.h"

/// Training loop around the step, and the publication of models in parallel to it.
namespace lockstep::train {

/// A checkpoint to publish, with its metrics.
struct Evaluated {
  int64_t step = 0;
  std::string save;                  ///< prefix of a committed checkpoint
  std::optional<double> train_loss;  ///< of the last update before it
  std::optional<EvalResult> eval;
};

/// Publishes models in parallel to training. Every rank makes the same calls, on the training
/// thread. Rank 0 does the work, in a separate thread. Errors end nothing: they are logged,
/// counted, and reported at the end.
class Exports {
 public:
  virtual ~Exports() = default;
  /// Starts an export. First waits for the previous one.
  virtual void begin(const Evaluated& evaluated) = 0;
  /// Waits until the checkpoint being published has been read. Call it before a save may remove it.
  virtual void wait_until_read() = 0;
  /// Waits for the running export. Collective. False on all ranks if the last one failed.
  virtual bool settle() = 0;
};

enum class RunEnd {
  kFinished,      ///< all steps done
  kStopped,       ///< saved on request; run again to resume
  kEnded,         ///< stopped without time to save; the last commit is kept
  kNotSaved,      ///< all steps done, but the final save failed
  kStoppedEarly,  ///< evaluations stopped improving (eval.patience); otherwise like kFinished
  kNotExported,   ///< all steps done and saved, but the last export failed
};

/// Hook before each step, on every rank, with the updates done. It may read and change the model.
using StepHook = std::function<void(int64_t step, model::Model& model)>;

/// Components of the loop; all outlive the run.
struct RunParts {
  Trainer& trainer;
  TrainerParts& training;
  RunSaves& saves;
  ReplicaCheck& replica_check;      ///< of the ranks' state
  const ModelHandler& handler;      ///< of the same model
  const data::Dataset* eval_data;   ///< null: no evaluation
  data::LoaderOptions eval_loader;  ///< of eval_data
  EvalOptions eval;
  Patience patience;  ///< includes the evaluations before a resumed run
  Recorder& recorder;
  StopRequest& stop;
  double grace_s = 1.0;  ///< seconds from the request to end until the launcher kills the process
  int64_t total_steps = 0;
  bool save_at_end = true;
  bool evaluates_first = false;  ///< the step that the run resumes from lacks its evaluation
  std::optional<double> loss_before = std::nullopt;  ///< of the last update before; set on rank 0
  StepHook on_step;                                  ///< may be empty
  Hooks& hooks;                                      ///< of training; the recorder is the first
  Hooks& eval_hooks;           ///< of each evaluation; the recorder is the first
  Exports* exports = nullptr;  ///< set if `publish` asks for exports
  PublishOptions publish;
  /// Reads a committed checkpoint into the live state, for eval.strict_restore_on_switch.
  /// Collective; throws if that changes a bit.
  std::function<void(const std::string& save)> reload = {};
  /// Function that receives each change of a running job, for settings outside the loop. Changes
  /// are equal on all ranks.
  std::function<void(const Change& change)> change = {};
};

struct RunResult {
  RunEnd end = RunEnd::kFinished;
  std::optional<EvalResult> eval;  ///< of the final weights
  std::string checkpoint;          ///< prefix of the last commit; empty: none
};

/// Work between two steps. An item is owed from its request on. It falls due after the first step
/// that allows it, and stays due until the next step. Every rank has the same agenda.
class Agenda {
 public:
  enum Item : size_t {
    kSave,
    kEvaluate,  ///< in runs that evaluate saves: with the next save
    kCheck,     ///< compare the ranks' states
    kPublish,   ///< the checkpoint of the present step is not published
    kNumItems
  };

  void owe(Item item, bool is_requested = true) { owed_[item] = owed_[item] || is_requested; }
  bool owes(Item item) const { return owed_[item]; }
  /// Makes an owed item due if `is_possible`. Returns true if it is due now.
  bool fall_due(Item item, bool is_possible = true) {
    due_[item] = owed_[item] && is_possible;
    if (due_[item]) owed_[item] = false;
    return due_[item];
  }
  bool is_due(Item item) const { return due_[item]; }
  void drop(Item item) { owed_[item] = false; }

 private:
  std::bitset<kNumItems> owed_{1U << kPublish}, due_;
};

/// Training loop around the step: save, evaluate, export, stop, in this order, on every rank at the
/// same step.
///
/// An evaluation uses the live model between two steps. If it belongs to a save (eval.on_save,
/// export.after_evaluation), training waits at that step until the save is committed. Without a
/// commit there is no evaluation.
class Run {
 public:
  explicit Run(const RunParts& parts) : parts_(parts) {}

  RunResult go();

 private:
  RunResult train();
  StepReport step();
  /// Does what is due after a step. Returns the end of the run if it ends here.
  std::optional<RunResult> after_step(const StepReport& report);
  RunResult stop(const StepReport& report);
  /// Applies the changes requested from rank 0 on all ranks. Collective.
  void make_changes();
  /// Waits until rank 0 is no longer asked to pause, or a rank must stop. Collective.
  void pause();
  /// Counts the signals that this rank has received since the last call.
  void count_signals();
  RunResult finish();
  /// Saves the final weights, as far as they are new.
  void finish_saves(const recal::AppliedActions& closing, RunResult* result);
  void agree(const std::string& when);
  /// Returns false if an evaluation was aborted.
  bool save_and_evaluate(const StepReport& report, bool is_last);
  /// Stops after an aborted evaluation, without another step.
  RunResult stop_here();
  /// Returns nullopt if the evaluation was aborted by a stop request, unless `ignores_stops`.
  std::optional<EvalResult> evaluate_now(bool ignores_stops = false);
  void reload();
  void publish(const std::optional<EvalResult>& result);
  bool starts_evaluation(const StepReport& report);
  /// True if evaluations belong to saves.
  bool evaluates_saves() const {
    return parts_.eval_data != nullptr && (parts_.eval.on_save || parts_.publish.after_evaluation);
  }
  Votes votes();
  bool is_asked_to_stop() const { return parts_.stop.stop_asked() || parts_.stop.end_asked(); }
  bool can_save(const StepReport& report);
  void log_once(const char* component, const std::string& text) const;

  RunParts parts_;
  Agenda agenda_;
  std::array<int64_t, kCountedSignals.size()> counted_{};  ///< recorded signals
  int64_t saves_seen_ = 0;  ///< requested saves (StopRequest::num_saves_asked()) voted for
  std::string written_;     ///< parameters written in forward, for messages; empty: none
  /// Time when training began, or resumed after an evaluation, by this rank's clock.
  double trains_since_s_ = checkpoint::SaveSchedule::steady_seconds();
  std::optional<double> evaluated_at_s_;  ///< start of the last evaluation, by this rank's clock
  std::optional<EvalResult> last_eval_;   ///< of the present weights
};

}  // namespace lockstep::train
