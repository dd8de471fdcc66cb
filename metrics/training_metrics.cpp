#include "metrics/training_metrics.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "metrics/gpu_metrics.h"
#include "metrics/live/live_history.h"
#include "metrics/process_metrics.h"
#include "metrics/series.h"
#include "metrics/step_metrics.h"
#include "metrics/table/page_text.h"
#include "metrics/training_series.h"
#include "metrics/unix_time.h"

// The trainer's thread writes; the server's thread builds pages. prometheus-cpp's metrics are
// thread-safe; the rest has its own locks.
namespace lockstep::metrics {
namespace {

using prometheus::MetricFamily;
using prometheus::Registry;

constexpr const char* kRunInfo = "lockstep_run_info";  ///< already has the run's name

/// Returns the lines logged by this process, read when the page is made, as the functions below.
MetricFamily log_lines() {
  MetricFamily family{"lockstep_log_messages_total",
                      series_info("lockstep_log_messages_total").help,
                      prometheus::MetricType::Counter,
                      {}};
  constexpr std::array kLevels = {
      std::pair{log::Level::kDebug, "debug"}, std::pair{log::Level::kInfo, "info"},
      std::pair{log::Level::kWarning, "warning"}, std::pair{log::Level::kError, "error"}};
  for (const auto& [level, name] : kLevels) {
    prometheus::ClientMetric& metric = family.metric.emplace_back();
    metric.label = {{"level", name}};
    metric.counter.value = static_cast<double>(log::num_lines(level));
  }
  return family;
}

/// Returns the lines that the log had to drop.
MetricFamily lost_lines() {
  MetricFamily family{"lockstep_log_lost_lines_total",
                      series_info("lockstep_log_lost_lines_total").help,
                      prometheus::MetricType::Counter,
                      {}};
  family.metric.emplace_back().counter.value = static_cast<double>(log::num_lost());
  return family;
}

/// Sorts families and label sets, so that pages are stable for readers.
void sort_for_readers(std::vector<MetricFamily>* families) {
  for (MetricFamily& family : *families)
    std::sort(family.metric.begin(), family.metric.end(),
              [](const auto& a, const auto& b) { return a.label < b.label; });
  std::sort(families->begin(), families->end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
}

}  // namespace

const char* state_name(RunState state) {
  switch (state) {
    case RunState::kInitializing:
      return "initializing";
    case RunState::kRestoring:
      return "restoring";
    case RunState::kTraining:
      return "training";
    case RunState::kValidating:
      return "validating";
    case RunState::kSaving:
      return "saving";
    case RunState::kDraining:
      return "draining";
    case RunState::kPaused:
      return "paused";
    case RunState::kFinished:
      return "finished";
    case RunState::kFailed:
      return "failed";
  }
  return "failed";
}

/// Data of the run's page besides the series.
struct TrainingMetrics::Live {
  LiveFacts facts;
  LiveHistory history;
  LivePoint pending;  ///< the newest step, whose rates are set after record_step()
  std::mutex mutex;
  std::vector<LiveRank> ranks;  // guarded by mutex
};

TrainingMetrics::TrainingMetrics(const RunFacts& facts)
    : registry_(std::make_unique<Registry>(Registry::InsertBehavior::Throw)),
      rank_(std::make_unique<RankSeries>(*registry_, facts)),
      recipe_(std::make_unique<RecipeMetrics>()),
      live_(std::make_unique<Live>()) {
  live_->facts = {.run_name = facts.run_name,
                  .model = facts.model,
                  .version = facts.version,
                  .node = facts.node,
                  .rank = facts.rank,
                  .world_size = facts.world_size};
  if (facts.is_root) add_run_series(facts);
  // Last: throws if a row's name is taken.
  step_ = std::make_unique<StepSeries>(*registry_, facts.is_root);
}

void TrainingMetrics::add_run_series(const RunFacts& facts) {
  run_ = std::make_unique<RunSeries>(*registry_, facts);
  recipe_ = std::make_unique<RecipeMetrics>(*registry_, facts.modifiers, facts.param_groups);
  run_->event_file_errors = &counter(*registry_, "lockstep_tensorboard_write_errors_total");
  set_state(RunState::kInitializing);
}

TrainingMetrics::~TrainingMetrics() = default;

void TrainingMetrics::set_state(RunState state) {
  if (!run_) return;
  for (int i = 0; i < kNumRunStates; ++i)
    run_->states[static_cast<size_t>(i)]->Set(static_cast<RunState>(i) == state);
}

void TrainingMetrics::record_step(const StepSample& sample) {
  step_->record(sample);
  rank_->step_duration.Observe(sample.duration_s);
  for (const double seconds : sample.allreduce_s_by_bucket)
    rank_->allreduce_duration.Observe(seconds);
  rank_->phases.add(sample.phases);
  if (!run_) return;
  run_->step.Set(static_cast<double>(sample.step));
  run_->epoch.Set(sample.epoch);
  record_point(sample);
}

/// Adds the previous step to the history. It is complete now: its rates and sparsity have been set.
void TrainingMetrics::record_point(const StepSample& sample) {
  LivePoint& pending = live_->pending;
  if (pending.step > 0) {
    pending.learning_rate = recipe_->learning_rate();
    pending.sparsity = recipe_->sparsity();
    live_->history.add(pending);
  }
  pending = {.step = sample.step,
             .time_s = unix_time_s(),
             .loss = sample.loss,
             .num_samples = pending.num_samples + sample.num_samples};
}

void TrainingMetrics::record_validation(const ValidationSample& sample) {
  if (!run_) return;
  run_->validation_loss.set(sample.loss);
  if (sample.accuracy) run_->validation_accuracy.set(*sample.accuracy);
  for (const ValidationValue& found : sample.values) {
    if (found.class_number)
      run_->validation_classes.set(
          {{"metric", found.name}, {"class", std::to_string(*found.class_number)}}, found.value);
    else
      run_->validation_metrics.Add({{"metric", found.name}}).Set(found.value);
  }
}

void TrainingMetrics::set_kpi(const std::string& mode, const std::string& name, double value) {
  // Only the root has run series; other ranks ignore the call.
  if (run_) run_->kpis.set({{"kpi", name}, {"mode", mode}}, value);
}

void TrainingMetrics::record_skipped_validation() {
  if (run_) run_->skipped_validations.Increment();
}

void TrainingMetrics::record_export(bool ok) {
  if (!run_) return;
  run_->exports.Increment();
  if (!ok) run_->export_failures.Increment();
}

void TrainingMetrics::record_save(const SaveSample& sample) {
  // Every rank counts its own share; only the root counts saves.
  rank_->stall.Increment(sample.stall_s);
  rank_->written_bytes.Increment(static_cast<double>(sample.written_bytes));
  if (!run_) return;
  run_->saves.Increment();
  if (sample.free_bytes) run_->free_bytes.set(static_cast<double>(*sample.free_bytes));
  if (!sample.committed) {
    run_->save_failures.Increment();
    return;
  }
  run_->save_duration.Observe(sample.duration_s);
  run_->last_commit.set(unix_time_s());
  run_->last_saved_step.set(static_cast<double>(sample.step));
}

void TrainingMetrics::record_restore(const RestoreSample& sample) {
  if (!run_) return;
  run_->restores.Increment();
  run_->damaged_saves.Increment(static_cast<double>(sample.num_damaged_saves));
  run_->restore_duration.set(sample.duration_s);
  run_->step.Set(static_cast<double>(sample.step));
  run_->last_saved_step.set(static_cast<double>(sample.step));
}

void TrainingMetrics::set_checkpoint_interval(double interval_s) {
  if (run_) run_->save_interval.set(interval_s);
}

void TrainingMetrics::set_checkpoint_interval_steps(int64_t num_steps) {
  if (run_) run_->save_interval_steps.set(static_cast<double>(num_steps));
}

void TrainingMetrics::set_replica_checks(int64_t num_checks, double seconds) {
  // The caller passes totals, but a counter can only be incremented.
  rank_->agreement_checks.Increment(static_cast<double>(num_checks) -
                                    rank_->agreement_checks.Value());
  rank_->agreement_seconds.Increment(seconds - rank_->agreement_seconds.Value());
}

void TrainingMetrics::record_signal(int signal_number) {
  // A fixed set of label values, plus "other".
  const auto known = std::find_if(kSignals.begin(), kSignals.end(),
                                  [=](const auto& entry) { return entry.first == signal_number; });
  const char* name = known == kSignals.end() ? "other" : known->second;
  rank_->signals.Add({{"signal", name}}).Increment();
}

void TrainingMetrics::set_event_file_errors(int64_t total) {
  if (run_)
    run_->event_file_errors->Increment(static_cast<double>(total) -
                                       run_->event_file_errors->Value());
}

void TrainingMetrics::set_ranks(std::vector<LiveRank> ranks) {
  const std::lock_guard lock(live_->mutex);
  live_->ranks = std::move(ranks);
}

void TrainingMetrics::set_gpu_use(std::function<GpuUse()> gpu_use) {
  const std::lock_guard lock(gpu_mutex_);
  gpu_use_ = std::move(gpu_use);
}

std::vector<MetricFamily> TrainingMetrics::families() const {
  std::vector<MetricFamily> all = registry_->Collect();
  all.push_back(log_lines());
  all.push_back(lost_lines());
  for (MetricFamily& family : ProcessMetrics().Collect()) all.push_back(std::move(family));
  const std::lock_guard lock(gpu_mutex_);
  if (gpu_use_)
    for (MetricFamily& family : gpu_use_families(gpu_use_())) all.push_back(std::move(family));
  sort_for_readers(&all);
  return all;
}

std::string TrainingMetrics::page() const { return page_text(families()); }

std::string TrainingMetrics::result() const {
  std::vector<MetricFamily> all = families();
  std::erase_if(all, [](const MetricFamily& family) { return !is_run_series(family.name); });
  // The text file collector of node exporter has many runs on one page.
  for (MetricFamily& family : all)
    for (prometheus::ClientMetric& metric : family.metric)
      if (family.name != kRunInfo) metric.label.push_back({"run", live_->facts.run_name});
  return page_text(all);
}

std::string TrainingMetrics::live() const {
  const std::lock_guard lock(live_->mutex);
  return live_json(live_->facts, families(), live_->history.points(), live_->ranks, unix_time_s());
}

}  // namespace lockstep::metrics
