#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/tensors/params.h"
#include "metrics/tensorboard/event_file.h"
#include "recal/scheduled_modifier_manager.h"
#include "train/hooks/hook.h"

namespace lockstep::train {

struct SummarySaverOptions {
  std::filesystem::path project_dir;
  std::string node;
  int64_t save_summary_steps = 100;
  int64_t histogram_steps = 0;  ///< of weights; 0: none
  double flush_s = 30;
  int64_t axis_units_per_step = 1;     ///< of the curves: samples of a step, where it counts these
  std::string run_text;                ///< what the run was told; empty: nothing is shown
  const ParamTable* params = nullptr;  ///< whose histograms are wanted; outlives the hook
  std::optional<int64_t> resumed_from_step;
};

/// loss/eval, accuracy/eval and the metrics of an evaluation after `step` updates.
void add_evaluation(metrics::EventFile* curves, int64_t step, const EvalResult& result);

/// TensorBoard's curves of a run: of its first step, every save_summary_steps, and its last one, so
/// that a short run has curves too. By mode: of training in <project_dir>/train, of evaluations in
/// <project_dir>/eval, over the updates done (coord/summary_clock.h) or the samples they took.
/// Every run has one, on rank 0; callbacks write with its writers.
class SummarySaverHook final : public Hook {
 public:
  /// `recipe` outlives it.
  SummarySaverHook(const SummarySaverOptions& options,
                   const recal::ScheduledModifierManager& recipe);

  void after_step(const IterationEnd& end) override;
  void after_evaluation(int64_t step, const EvalResult& result) override;
  void end() override { flush(); }
  /// The last step's point, if it has none yet.
  void end_training();
  /// What the recipe closed the run with, after `step` updates.
  void closing(int64_t step);
  void flush();

  metrics::EventFile& writer(coord::Mode mode) {
    return mode == coord::Mode::kTrain ? train_ : eval_;
  }
  /// So far, of both.
  int64_t num_write_errors() const { return train_.num_write_errors() + eval_.num_write_errors(); }

 private:
  /// What a point of the curves holds of a step.
  struct Point {
    int64_t step = 0;
    std::optional<double> loss;
    double learning_rate = 0, weight_decay = 0, sparsity = 0;
  };

  void write_point();
  void write_histograms(int64_t step);
  void write_recipe(int64_t num_updates, int64_t step);

  const SummarySaverOptions options_;
  const recal::ScheduledModifierManager& recipe_;
  metrics::EventFile train_, eval_;
  Point last_;  ///< step 0: none yet
  int64_t written_step_ = 0;
};

}  // namespace lockstep::train
