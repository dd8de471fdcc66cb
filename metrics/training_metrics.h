#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "metrics/gpu_metrics.h"
#include "metrics/live/live_page.h"
#include "metrics/recipe_metrics.h"
#include "metrics/samples.h"

namespace prometheus {
class Registry;
}

namespace lockstep::metrics {

class StepSeries;
struct RankSeries;
struct RunSeries;

/// Every series of one process and the page that shows them; docs/metrics.md lists them.
///
/// Two kinds: rank series on every rank, run series (loss, learning rate, sparsity, saves) where
/// facts.is_root. Calls that feed only run series do nothing elsewhere, so every rank makes the
/// same calls. Counters and known label values start at 0; a gauge whose value is not known yet
/// (loss before the first step) is absent until it is.
///
/// Threads: record_* and set_* from one thread (the trainer's), record_signal, page() and live()
/// from any. record_step costs about a microsecond: atomics, one uncontended lock of a histogram,
/// no allocation, no look-up.
class TrainingMetrics {
 public:
  /// Throws Error(kBug) if two modifiers have one name; Error(kConfig) for a row of step_metrics()
  /// whose name is taken.
  explicit TrainingMetrics(const RunFacts& facts);
  ~TrainingMetrics();
  TrainingMetrics(const TrainingMetrics&) = delete;
  TrainingMetrics& operator=(const TrainingMetrics&) = delete;

  void set_state(RunState state);
  void record_step(const StepSample& sample);
  void record_validation(const ValidationSample& sample);
  /// A KPI of callbacks in `mode`: train or eval.
  void set_kpi(const std::string& mode, const std::string& name, double value);
  /// A save that was not validated, for the last validation was not long ago.
  void record_skipped_validation();
  /// A model was published, or could not be; from any thread.
  void record_export(bool ok);
  void record_save(const SaveSample& sample);
  void record_restore(const RestoreSample& sample);
  /// Seconds expected from one commit to the next.
  void set_checkpoint_interval(double interval_s);
  /// Steps from one save to the next.
  void set_checkpoint_interval_steps(int64_t num_steps);
  /// Comparisons of the ranks' state so far, and the seconds they took on this rank.
  void set_replica_checks(int64_t num_checks, double seconds);
  /// Not to be called from inside a signal handler.
  void record_signal(int signal_number);
  /// EventFile::num_write_errors() so far.
  void set_event_file_errors(int64_t total);

  /// What the recipe does; indices are into RunFacts::modifiers and param_groups.
  RecipeMetrics& recipe() { return *recipe_; }

  /// What the allocator of this rank's GPU tells, which is asked whenever a page is made, by the
  /// thread that makes it.
  void set_gpu_use(std::function<GpuUse()> gpu_use);

  /// For parts of this module that add series of their own.
  prometheus::Registry& registry() { return *registry_; }

  /// All series, with process and log counts, in Prometheus' text format 0.0.4; families sorted by
  /// name.
  std::string page() const;

  /// The series of the run alone, each with the label `run`: what a run that has ended leaves
  /// behind.
  std::string result() const;

  /// What the page at `/` shows, as live_json() has it: curves of the steps before the newest one.
  std::string live() const;
  /// All ranks that serve pages, for that page; from any thread.
  void set_ranks(std::vector<LiveRank> ranks);

 private:
  struct Live;

  std::vector<prometheus::MetricFamily> families() const;
  void record_point(const StepSample& sample);
  void add_run_series(const RunFacts& facts);

  std::unique_ptr<prometheus::Registry> registry_;
  std::unique_ptr<RankSeries> rank_;
  std::unique_ptr<RunSeries> run_;  // null where not root
  std::unique_ptr<RecipeMetrics> recipe_;
  std::unique_ptr<StepSeries> step_;
  mutable std::mutex gpu_mutex_;
  std::function<GpuUse()> gpu_use_;  // guarded by gpu_mutex_; empty on a CPU
  std::unique_ptr<Live> live_;
};

}  // namespace lockstep::metrics
