#pragma once

#include <algorithm>
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
#include "train/eval_metrics.h"
#include "train/step/trainer.h"

namespace lockstep::train {

/// Properties of the run that a hook belongs to; all outlive it.
struct HookContext {
  int rank = 0;
  int world_size = 1;
  std::filesystem::path project_dir;  ///< folder of the run; one rank alone writes there
  int64_t total_steps = 0;
  int64_t steps_per_epoch = 1;
  const model::Model& model;
  metrics::TrainingMetrics* metrics = nullptr;  ///< for additional series; null in `lockstep eval`
};

/// Start of a loop: the training, or an evaluation.
struct LoopStart {
  const HookContext& run;
  coord::Mode mode = coord::Mode::kTrain;
  int64_t step = 0;            ///< number of updates before it
  int64_t num_iterations = 0;  ///< of this rank, in an epoch of training or in this evaluation
  metrics::EventFile* summary_writer = nullptr;  ///< for this loop's curves; null: none are written
};

/// Results of one iteration of a loop on this rank.
struct IterationEnd {
  int64_t iteration = 0;  ///< from 0, since training's first start or of this evaluation
  int64_t step = 0;       ///< updates done; in training including this iteration
  double loss = 0;        ///< training: StepReport::loss; evaluation: mean over the batch
  double network_s = 0;   ///< duration of forward and backward
  const StepTensors* tensors = nullptr;  ///< null unless a hook has reads_tensors()
  const StepReport* report = nullptr;    ///< of the update; null in evaluation
};

/// Code around the steps of a loop, like TensorFlow's SessionRunHook. Every rank has a separate
/// instance, and all make the same calls in the same order. First begin, then before_step and
/// after_step for each iteration, then end. A last iteration that a stop skips has no after_step
/// (train/step/trainer.h). If a stop ends the loop early, break_off is called instead of end. After
/// an error neither is called. A hook may read the weights but must not change them. Its exceptions
/// end the run on all ranks.
///
///   class LowestLoss : public Hook {
///     void after_step(const IterationEnd& end) override { lowest_ = std::min(lowest_, end.loss); }
///   };
///
/// Callbacks (coord/callback.h) are the users' interface; to_hook() converts them to hooks.
///
/// Threads: called on the training thread, which waits.
class Hook {
 public:
  virtual ~Hook() = default;
  /// True if after_step() reads the tensors, which are kept only then.
  virtual bool reads_tensors() const { return false; }
  virtual void begin(const LoopStart&) {}
  /// Called before an iteration. step: updates done.
  virtual void before_step(int64_t /*step*/) {}
  virtual void after_step(const IterationEnd&) {}
  /// Called in training after an evaluation at `step` updates.
  virtual void after_evaluation(int64_t /*step*/, const EvalResult&) {}
  /// Called in training after the last save.
  virtual void end() {}
  /// Called instead of end() if a stop ended training before its last step, or an evaluation before
  /// its last batch.
  virtual void break_off() { end(); }
  /// Adds the hook's results to that of an evaluation. Called after end().
  virtual void complete(EvalResult*) {}
};

using MakeHook = std::function<std::unique_ptr<Hook>()>;

/// Calls several hooks one after another, in the order in which they were added.
class Hooks {
 public:
  explicit Hooks(const HookContext& context) : context_(context) {}
  /// Adds a hook, which must outlive this.
  void add(Hook& hook) { all_.push_back(&hook); }
  void add_first(Hook& hook) { all_.insert(all_.begin(), &hook); }
  /// Sets the writer of this loop's summaries on this rank. Call it on every rank, since summaries
  /// may contain a mean.
  void set_summaries(summary::DefaultWriterOptions summaries) { summaries_ = std::move(summaries); }
  /// Returns the options of a summary::DefaultWriter for the iteration at `summary_step`.
  summary::DefaultWriterOptions summaries_at(int64_t summary_step) const {
    summary::DefaultWriterOptions summaries = summaries_;
    summaries.step = summary_step;
    return summaries;
  }
  bool read_tensors() const { return std::ranges::any_of(all_, &Hook::reads_tensors); }
  /// Run one loop after another; see Hook.
  void begin(coord::Mode mode, int64_t step, int64_t num_iterations) {
    const LoopStart start{.run = context_,
                          .mode = mode,
                          .step = step,
                          .num_iterations = num_iterations,
                          .summary_writer = summaries_.file};
    call(&Hook::begin, start);
  }
  void before_step(int64_t step) { call(&Hook::before_step, step); }
  void after_step(const IterationEnd& end) { call(&Hook::after_step, end); }
  void after_evaluation(int64_t step, const EvalResult& result) {
    call(&Hook::after_evaluation, step, result);
  }
  void end() { call(&Hook::end); }
  void break_off() { call(&Hook::break_off); }
  void complete(EvalResult* result) { call(&Hook::complete, result); }

 private:
  template <typename Method, typename... Values>
  void call(Method method, const Values&... values) {
    for (Hook* hook : all_) (hook->*method)(values...);
  }

  const HookContext context_;
  std::vector<Hook*> all_;
  summary::DefaultWriterOptions summaries_;
};

}  // namespace lockstep::train
