#pragma once

#include <vector>

#include "metrics/tensorboard/event_file.h"
#include "recal/scheduled_modifier_manager.h"
#include "train/hook.h"

namespace lockstep::train {

struct RecorderOptions;

/// Adds the curves of an evaluation after `step` updates: loss/eval, accuracy/eval and its metrics.
void add_evaluation(metrics::EventFile* curves, int64_t step, const EvalResult& result);

/// TensorBoard's curves of a run: its first step, every save_summary_steps, and its last step, so
/// that a short run has curves too. Training curves are in <project_dir>/train, those of
/// evaluations in <project_dir>/eval. The x axis counts updates (coord/callback.h) or their
/// samples. Every run has one, on rank 0; callbacks use its writers.
class SummarySaverHook final : public Hook {
 public:
  /// Both outlive this.
  SummarySaverHook(const RecorderOptions& options, const recal::ScheduledModifierManager& recipe);

  void after_step(const IterationEnd& end) override;
  void after_evaluation(int64_t step, const EvalResult& result) override;
  void end() override { flush(); }
  /// Writes the last step's point, unless it is written.
  void end_training();
  /// Writes the recipe's closing actions, after `step` updates.
  void closing(int64_t step);
  void flush();

  metrics::EventFile& writer(coord::Mode mode) {
    return mode == coord::Mode::kTrain ? train_ : eval_;
  }
  /// Failed writes so far, of both files.
  int64_t num_write_errors() const { return train_.num_write_errors() + eval_.num_write_errors(); }

 private:
  void write_point();
  void write_histograms(int64_t step);
  void write_recipe(int64_t num_updates, int64_t step);

  const RecorderOptions& options_;
  const recal::ScheduledModifierManager& recipe_;
  metrics::EventFile train_, eval_;
  std::vector<metrics::Scalar> last_;         ///< values of last_step_ on the curves
  int64_t last_step_ = 0, written_step_ = 0;  ///< 0: none yet
};

}  // namespace lockstep::train
