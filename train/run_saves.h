#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/step_clock.h"
#include "checkpoint/checkpoint_options.h"
#include "checkpoint/save/saver.h"
#include "train/evaluator.h"
#include "train/recorder.h"
#include "train/weight_checks.h"

namespace lockstep::train {

/// Components of saves; all outlive the run.
struct RunSavesParts {
  checkpoint::Saver& saver;
  checkpoint::SaveSchedule& schedule;
  const checkpoint::CheckpointOptions& options;
  ReplicaCheck& replica_check;  ///< counts the comparisons of saves
  StateSource state;            ///< lists the state to save
  std::string prefix;           ///< DIR/model.ckpt
  Recorder& recorder;
  dist::Communicator& control;
  const StepClock& clock;
  int64_t last_saved_step = -1;  ///< step of the own checkpoint that the run resumes from
  std::string last_commit;       ///< prefix of the checkpoint that the run resumes from, if any
  std::function<void()> before = {};  ///< called before saves, which may remove checkpoints
};

/// Saves of a run: begun between two steps, written in parallel to the next steps, recorded when
/// all ranks have finished. Every rank makes the same calls at the same steps.
class RunSaves {
 public:
  /// Reads the best checkpoint so far on rank 0. Collective.
  explicit RunSaves(const RunSavesParts& parts);

  bool enabled() const { return parts_.options.enabled; }
  /// True if this rank votes for a save in the step that ends with `step` updates.
  bool due_here(int64_t step) const { return parts_.schedule.due_here(step); }
  /// Changes the interval from now on; equal on all ranks.
  void set_every_steps(int64_t every_steps) { parts_.schedule.set_every_steps(every_steps); }
  bool done_here() const { return parts_.saver.is_under_way() && parts_.saver.is_done(); }

  /// False while a save is in progress after one that failed: begin() would wait for it. If a store
  /// or disk is down, each save takes its whole time limit, and training must not. Equal on all
  /// ranks.
  bool may_begin() const { return last_ok_ || !parts_.saver.is_under_way(); }
  /// Saves the state after the clock's step. Waits for a previous save, and for this one as long as
  /// the options say.
  void begin();
  /// Waits until the save in progress has copied the state. Call it before the state changes.
  void wait_until_staged() { parts_.saver.wait_until_staged(); }
  /// Waits for the save in progress, if any, and records its result. Throws like Saver::wait().
  void settle();
  /// Calls begin() and settle(); true if committed.
  bool save_now();

  /// Reports an evaluation after the clock's step. If it is the best so far, its step is saved
  /// (unless it is already), and that checkpoint is kept.
  void evaluated(const EvalResult& result);

  int64_t last_saved_step() const { return last_saved_step_; }     ///< committed
  const std::string& last_commit() const { return last_commit_; }  ///< empty: none
  /// True if a save begun now would end within grace_s seconds. Estimate: twice the longest save of
  /// this process; before the first save, the time of a slow disk.
  bool fits(double grace_s) const;

 private:
  struct Best {
    int64_t step = 0;
    double value = 0;
  };

  void wait_together();
  void name_best();

  RunSavesParts parts_;
  int64_t last_saved_step_;
  std::string last_commit_;
  bool last_ok_ = true;
  double longest_s_ = 0;
  double begin_s_ = 0;  ///< seconds to list the state of the save in progress
  std::optional<double> best_value_;
  std::optional<Best> to_be_named_;  ///< becomes the best once its save is committed
};

}  // namespace lockstep::train
