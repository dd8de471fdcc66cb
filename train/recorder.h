#pragma once

#include <filesystem>
#include <optional>

#include "metrics/exposition.h"
#include "metrics/goodput.h"
#include "metrics/metrics_options.h"
#include "metrics/progress.h"
#include "metrics/training_metrics.h"
#include "recal/scheduled_modifier_manager.h"
#include "train/hook.h"
#include "train/records.h"
#include "train/summary_saver_hook.h"
#include "train/weight_checks.h"

namespace lockstep::train {

struct RecorderOptions {
  metrics::SummaryOptions summary;
  std::filesystem::path project_dir;
  std::string node;
  bool is_root = true;  ///< true on the rank that writes the run's files and progress lines
  std::optional<metrics::LaunchFacts> launch = {};  ///< for goodput.csv; nullopt: none is written
  int64_t total_steps = 0;
  int64_t global_batch_size = 1;  ///< samples of a step, over all ranks
  bool is_interactive = false;    ///< show a progress bar; lines go to the log file only
  std::optional<int64_t> resumed_from_step;
  std::vector<int> pruning_modifiers;  ///< positions of sparsity modifiers in the timeline's list
  int64_t num_parameters = 0;          ///< elements, of the whole model
  int64_t num_prunable_weights = 0;
  std::string run_text = {};              ///< settings of the run, as Markdown
  const ParamTable* params = nullptr;     ///< for summary.histogram_steps; outlives the recorder
  std::optional<double> save_interval_s;  ///< set if saves go by time, in seconds
  std::optional<int64_t> save_interval_steps = {};  ///< set if saves go by steps
  bool has_spares = false;                   ///< if this process is lost, others continue its files
  std::optional<StepLine> line_before = {};  ///< of steps.csv, by the ranks that were not lost
};

/// Distributes the loop's reports to steps.csv, TensorBoard (SummarySaverHook), Prometheus, the
/// progress line and the summary. It is the first hook of every training and evaluation. Every rank
/// makes the same calls; only the root writes files and lines.
class Recorder final : public Hook {
 public:
  /// All arguments outlive the recorder.
  Recorder(const RecorderOptions& options, const recal::ScheduledModifierManager& recipe,
           metrics::TrainingMetrics& metrics, metrics::Health& health);
  ~Recorder() override;  // takes the bar away

  void state(metrics::RunState state);
  /// Records an update in training. In an evaluation it only reports that the process is alive.
  void after_step(const IterationEnd& end) override;
  void after_evaluation(int64_t step, const EvalResult& result) override;
  /// Sets the save interval, for `ctl set checkpoint.save_checkpoints_steps`.
  void save_interval_steps(int64_t num_steps) { metrics_.set_checkpoint_interval_steps(num_steps); }
  /// Sets the interval of progress lines in seconds; 0: none.
  void progress_every(double seconds) { progress_.set_every(options_.is_root ? seconds : 0); }
  /// Counts a save that was not evaluated, because of eval.eval_throttle_secs.
  void evaluation_skipped() { metrics_.record_skipped_validation(); }
  /// Ends the training's curves after the last step; an evaluation may follow.
  void end_training();
  /// Records the recipe's closing actions, after `step` updates.
  void closing(int64_t step, const recal::AppliedActions& applied, int64_t num_trainable);
  /// Records a save, which blocked training for stall_s seconds.
  void save(const metrics::SaveSample& sample) {
    metrics_.record_save(sample);
    if (goodput_) goodput_->save(sample.stall_s);
  }
  void replica_check(const ReplicaCheck& replica_check) {
    metrics_.set_replica_checks(replica_check.num_checks(), replica_check.seconds());
  }
  void signal(int signal_number) { metrics_.record_signal(signal_number); }
  /// Records a new value of a callback's KPI.
  void kpi(coord::Mode mode, const std::string& name, double value) {
    metrics_.set_kpi(coord::mode_name(mode), name, value);
  }
  void flush();
  /// Records how training has ended; not called after a failure.
  void end_run(metrics::StartEnd end);

  /// Returns the TensorBoard hook; null if no summaries are written.
  SummarySaverHook* summaries() { return summaries_ ? &*summaries_ : nullptr; }
  /// Time of the whole run; nullopt if it is not recorded.
  std::optional<metrics::RunTime> run_time() const {
    return goodput_ ? std::optional(goodput_->run_time()) : std::nullopt;
  }
  std::optional<double> last_loss() const { return last_loss_; }
  /// Line of steps.csv for the newest step, on every rank.
  const std::optional<StepLine>& last_line() const { return last_line_; }
  /// Number of updates of this rank that were skipped because something was not finite.
  int64_t num_skipped() const { return num_skipped_; }
  /// Global samples per second, without this process' first 10 steps, saves and evaluation; 0
  /// without further steps.
  double samples_per_second() const {
    return counted_s_ > 0 ? static_cast<double>(counted_samples_) / counted_s_ : 0;
  }

 private:
  void write_curves(const StepReport& report);
  void tell_progress(const StepReport& report);
  void step(const StepReport& report);
  void record_rates(const StepReport& report);
  void record_recipe(const StepReport& report);
  void record_followed_formulas(int64_t step);
  void record_due(int64_t step, int64_t num_mask_updates, int64_t num_trainable);

  RecorderOptions options_;
  const recal::ScheduledModifierManager& recipe_;
  metrics::TrainingMetrics& metrics_;
  metrics::Health& health_;
  std::optional<StepsCsv> steps_csv_;
  std::optional<EvalsCsv> evals_csv_;
  std::optional<SummarySaverHook> summaries_;
  metrics::Progress progress_;
  std::optional<metrics::Goodput> goodput_;
  std::optional<double> last_loss_;
  std::optional<StepLine> last_line_;
  int64_t num_steps_ = 0;
  int64_t num_skipped_ = 0;
  int64_t revived_ = 0;
  int64_t global_samples_ = 0;
  double busy_s_ = 0, data_s_ = 0, allreduce_s_ = 0;  ///< of this rank's steps
  int64_t counted_samples_ = 0;
  double counted_s_ = 0;
};

}  // namespace lockstep::train
