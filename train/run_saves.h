#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/step_clock.h"
#include "checkpoint/checkpoint_options.h"
#include "checkpoint/save/saver.h"
#include "checkpoint/save_schedule.h"
#include "train/evaluator.h"
#include "train/recorder.h"
#include "train/sync/replica_check.h"

namespace lockstep::train {

/// What saves are made of; all of it outlives the run.
struct RunSavesParts {
  checkpoint::Saver& saver;
  checkpoint::SaveSchedule& schedule;
  const checkpoint::CheckpointOptions& options;
  ReplicaCheck& replica_check;  ///< counts the comparisons that saves make
  StateSource state;            ///< what a save holds
  std::string prefix;           ///< DIR/model.ckpt
  Recorder& recorder;
  dist::Communicator& control;
  const StepClock& clock;
  int64_t last_saved_step = -1;       ///< of the save in the own folder that the run goes on from
  std::string last_commit;            ///< prefix of the save that the run goes on from, if any
  std::function<void()> before = {};  ///< before each save, which may remove others; may be empty
};

/// The saves of a run: begun between two steps, written beside the next ones, recorded when they
/// have ended on all ranks. Every rank makes the same calls at the same steps.
class RunSaves {
 public:
  /// Collective: the best save so far is read by rank 0.
  explicit RunSaves(const RunSavesParts& parts);

  bool enabled() const { return parts_.options.enabled; }
  /// This rank's votes in the step that ends with `step` updates.
  bool due_here(int64_t step) const { return parts_.schedule.due_here(step); }
  /// From now on, equal on all ranks.
  void set_every_steps(int64_t every_steps) { parts_.schedule.set_every_steps(every_steps); }
  bool done_here() const { return parts_.saver.is_under_way() && parts_.saver.is_done(); }

  /// Saves the state after the clock's step; waits for a save before it, and as long as the options
  /// say for this one.
  void begin();
  /// Before what a save may still read changes.
  void wait_until_staged() { parts_.saver.wait_until_staged(); }
  /// Waits for the save under way, if any, and records how it ended. Throws as Saver::wait().
  void settle();
  /// begin() and settle(); true if committed.
  bool save_now();

  /// An evaluation after the clock's step: where it is the best so far, that step is saved if it is
  /// not yet, and the save stays.
  void evaluated(const EvalResult& result);

  int64_t last_saved_step() const { return last_saved_step_; }     ///< committed
  const std::string& last_commit() const { return last_commit_; }  ///< empty: none
  /// Whether a save begun now would end within that time: twice the longest save of this process;
  /// before the first one, what a slow disk would need.
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
  double begin_s_ = 0;  ///< it took to list the state of the save under way
  std::optional<double> best_value_;
  std::optional<Best> to_be_named_;  ///< once its save is committed
};

}  // namespace lockstep::train
