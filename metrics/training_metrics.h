#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "metrics/live_page.h"
#include "metrics/page_format.h"
#include "metrics/recipe_metrics.h"
#include "metrics/samples.h"

namespace prometheus {
class Registry;
}  // namespace prometheus

/// All series and pages of a training process, with those of its GPU.
namespace lockstep::metrics {

/// GPU of a rank.
struct GpuFacts {
  int index = 0;                ///< CUDA's index, among the GPUs that the process sees
  std::string id;               ///< "GPU-..."; empty if CUDA does not provide it
  std::string visible_devices;  ///< CUDA_VISIBLE_DEVICES; empty if unset
  std::string name;             ///< its name in visible_devices; the index if that is unset
  std::string memory_policy;    ///< default: allocate memory when needed; all: at the start
  int64_t memory_bytes = 0;
  int64_t memory_limit_bytes = 0;  ///< limit for tensors
};

/// Numbers of LibTorch's allocator for the GPU.
struct GpuUse {
  int64_t allocated_bytes = 0;  ///< in tensors now
  int64_t reserved_bytes = 0;   ///< allocated from the GPU, in use or cached
  int64_t peak_bytes = 0;       ///< maximum in tensors since the process started
  int64_t num_ooms = 0;         ///< allocations that failed
};

/// Adds the series of this rank's GPU. Call it once. A rank on a CPU exports no such series.
void add_gpu_series(prometheus::Registry& registry, const GpuFacts& gpu);

struct PageContent;
struct RunTime;
class StepSeries;
struct RankSeries;
struct RunSeries;

/// All series of one process and their page; docs/metrics.md lists them.
///
/// Every rank has the rank series. Only facts.is_root has the run series (loss, learning rate,
/// sparsity, checkpoints). Calls that feed only run series do nothing on other ranks, so every rank
/// makes the same calls. Counters and known label values start at 0. A gauge is absent until its
/// value is known (loss before the first step).
///
/// Threads: record_* and set_* from one thread (the trainer's); record_signal, page() and live()
/// from any. record_step takes about a microsecond: atomics, and for each histogram an uncontended
/// lock and a look-up.
class TrainingMetrics {
 public:
  /// Registers the series. Throws Error(kBug) if two modifiers have one name, Error(kConfig) for a
  /// row of step_metrics() whose name is taken.
  explicit TrainingMetrics(const RunFacts& facts);
  ~TrainingMetrics();
  TrainingMetrics(const TrainingMetrics&) = delete;
  TrainingMetrics& operator=(const TrainingMetrics&) = delete;

  void set_state(RunState state);
  void record_step(const StepSample& sample);
  void record_validation(const ValidationSample& sample);
  /// Sets a KPI of callbacks in `mode`: train or eval.
  void set_kpi(const std::string& mode, const std::string& name, double value);
  /// Counts a save without validation, because the last validation was recent.
  void record_skipped_validation();
  /// Counts an export that succeeded or failed. Any thread.
  void record_export(bool ok);
  void record_save(const SaveSample& sample);
  void record_restore(const RestoreSample& sample);
  /// Records that the run continues from this step, after ranks were lost.
  void record_takeover(int64_t step, double duration_s);
  /// Sets the uses of the run's time so far.
  void set_run_time(const RunTime& time);
  /// Sets the expected seconds between two commits.
  void set_checkpoint_interval(double interval_s);
  /// Sets the steps between two saves.
  void set_checkpoint_interval_steps(int64_t num_steps);
  /// Sets the number of comparisons of the ranks' state so far, and their seconds on this rank.
  void set_replica_checks(int64_t num_checks, double seconds);
  /// Counts a received signal. Do not call it inside a signal handler.
  void record_signal(int signal_number);
  /// Sets EventFile::num_write_errors().
  void set_event_file_errors(int64_t total);

  /// Series of the recipe. Indexes are into RunFacts::modifiers and param_groups.
  RecipeMetrics& recipe() { return *recipe_; }

  /// Sets the function that reads the allocator of this rank's GPU. The thread that makes a page
  /// calls it.
  void set_gpu_use(std::function<GpuUse()> gpu_use);

  /// Returns the registry, for parts of this module that add series.
  prometheus::Registry& registry() { return *registry_; }

  /// Returns all series, with process and log counts. Families are sorted by name.
  std::string page(PageFormat format = PageFormat::kText) const;

  /// Returns only the run's series, each with the label `run`. Kept after the run has ended.
  std::string result() const;

  /// Returns the data of the page at `/`, as live_json() formats it: curves of the steps before the
  /// newest one.
  std::string live() const;
  /// Sets the ranks that serve pages, for the page at `/`. Any thread.
  void set_ranks(std::vector<LiveRank> ranks);

 private:
  struct Live;

  PageContent content(PageFormat format) const;
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
