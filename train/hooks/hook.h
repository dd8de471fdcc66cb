#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "coord/callback.h"
#include "metrics/tensorboard/summary.h"
#include "metrics/training_metrics.h"
#include "model/model.h"
#include "train/evaluation/eval_result.h"
#include "train/gradients/step_tensors.h"
#include "train/step/step_report.h"

namespace lockstep::train {

/// Facts of the run that a hook belongs to; all of them outlive it.
struct HookContext {
  int rank = 0;
  int world_size = 1;
  std::filesystem::path project_dir;  ///< of the run; a hook that writes does so on one rank
  int64_t total_steps = 0;
  int64_t steps_per_epoch = 1;
  const model::Model& model;
  metrics::TrainingMetrics* metrics =
      nullptr;  ///< registry() takes series of one's own; null in `lockstep eval`
};

/// The loop that begins: the training, or an evaluation.
struct LoopStart {
  const HookContext& run;
  coord::Mode mode = coord::Mode::kTrain;
  int64_t step = 0;            ///< updates done before it
  int64_t num_iterations = 0;  ///< of this rank, in an epoch of training or in this evaluation
  metrics::EventFile* summary_writer = nullptr;  ///< of this loop's curves; null: none are written
};

/// What one iteration of a loop left on this rank.
struct IterationEnd {
  int64_t iteration = 0;  ///< from 0: in training since the run's first start, else in this
                          ///< evaluation
  int64_t step = 0;       ///< updates done; in training this iteration's included
  double loss = 0;        ///< training: StepReport::loss; evaluation: mean over the batch
  double network_s = 0;   ///< seconds of forward and backward
  const StepTensors* tensors = nullptr;  ///< null where no hook reads_tensors()
  const StepReport* report = nullptr;    ///< of the update; null in evaluation
};

/// Code around the steps of a loop, in the manner of TensorFlow's SessionRunHook. Every rank has
/// its own and makes the same calls in the same order: begin, then before_step and after_step for
/// each iteration (no after_step for a last one that a stop leaves out, train/step/data_wait.h),
/// then end (also where a signal ends the run, and not after an error). It reads the weights and
/// changes none. What it throws ends the run on all ranks.
///
///   class LowestLoss : public Hook {
///     void after_step(const IterationEnd& end) override { lowest_ = std::min(lowest_, end.loss); }
///   };
///
/// Callbacks (coord/callback.h) are for users; to_hook() makes a hook of them.
///
/// Threads: called by the thread that trains, which waits.
class Hook {
 public:
  virtual ~Hook() = default;
  /// Whether after_step() looks at the tensors, which are kept only then.
  virtual bool reads_tensors() const { return false; }
  virtual void begin(const LoopStart&) {}
  /// `step`: updates done.
  virtual void before_step(int64_t /*step*/) {}
  virtual void after_step(const IterationEnd&) {}
  /// In training: an evaluation was made after `step` updates.
  virtual void after_evaluation(int64_t /*step*/, const EvalResult&) {}
  /// In training after the last save.
  virtual void end() {}
  /// Instead of end(), where a stop ended a training before its last step, or an evaluation before
  /// its last batch.
  virtual void break_off() { end(); }
  /// After end() of an evaluation: adds what the hook found to its result.
  virtual void complete(EvalResult*) {}
};

using MakeHook = std::function<std::unique_ptr<Hook>()>;

/// Hooks called one after the other, in the order in which they were added.
class Hooks {
 public:
  explicit Hooks(const HookContext& context) : context_(context) {}
  /// It must outlive this.
  void add(Hook& hook) { all_.push_back(&hook); }
  void add_first(Hook& hook) { all_.insert(all_.begin(), &hook); }
  /// The writer of this loop's summaries, on this rank. On every rank, as it may have a mean.
  void set_summaries(summary::DefaultWriterOptions summaries) { summaries_ = std::move(summaries); }
  /// For the iteration whose summaries stand at `summary_step`: a summary::DefaultWriter around it.
  summary::DefaultWriterOptions summaries_at(int64_t summary_step) const;
  bool read_tensors() const;
  /// Runs one loop after the other; see Hook.
  void begin(coord::Mode mode, int64_t step, int64_t num_iterations);
  void before_step(int64_t step);
  void after_step(const IterationEnd& end);
  void after_evaluation(int64_t step, const EvalResult& result);
  void end();
  void break_off();
  void complete(EvalResult* result);

 private:
  const HookContext context_;
  std::vector<Hook*> all_;
  summary::DefaultWriterOptions summaries_;
};

}  // namespace lockstep::train
