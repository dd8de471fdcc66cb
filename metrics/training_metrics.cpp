#include "metrics/training_metrics.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <utility>

#include <prometheus/metric_family.h>

#include "base/error.h"
#include "base/log.h"
#include "metrics/goodput.h"
#include "metrics/native_histogram.h"
#include "metrics/page_formats.h"
#include "metrics/series.h"
#include "metrics/step_metrics.h"

// Series and pages of a training process, with the series of its GPU.
namespace lockstep::metrics {

constexpr std::array kPhases = {std::pair{"data", &PhaseSeconds::data},
                                std::pair{"forward", &PhaseSeconds::forward},
                                std::pair{"backward", &PhaseSeconds::backward},
                                std::pair{"allreduce", &PhaseSeconds::allreduce},
                                std::pair{"optimizer", &PhaseSeconds::optimizer},
                                std::pair{"modifier", &PhaseSeconds::modifier},
                                std::pair{"other", &PhaseSeconds::other}};

inline constexpr std::array kSignals = {
    std::pair{SIGHUP, "SIGHUP"},   std::pair{SIGINT, "SIGINT"},   std::pair{SIGTERM, "SIGTERM"},
    std::pair{SIGUSR1, "SIGUSR1"}, std::pair{SIGUSR2, "SIGUSR2"},
};

// Histogram bounds. Each bound is a series, so there are few, denser where values are likely.
inline const std::vector<double> kStepBounds_s{0.001, 0.0025, 0.006, 0.015, 0.04, 0.1, 0.25,
                                               0.6,   1.5,    4,     10,    25,   60},
    kAllreduceBounds_s{0.0001, 0.0005, 0.002, 0.01, 0.05, 0.5, 10},
    kSaveBounds_s{0.1, 0.5, 2, 10, 60, 300, 1800};

/// Series of every rank.
struct RankSeries {
  RankSeries(prometheus::Registry& r, const RunFacts& facts)
      : stall(counter(r, "lockstep_checkpoint_stall_seconds_total")),
        written_bytes(counter(r, "lockstep_checkpoint_written_bytes_total")),
        agreement_checks(counter(r, "lockstep_agreement_checks_total")),
        agreement_seconds(counter(r, "lockstep_agreement_seconds_total")),
        signals(counter_family(r, "lockstep_signals_total")) {
    info(r, "lockstep_build_info",
         {{"version", facts.version},
          {"commit", facts.commit},
          {"torch", facts.torch_version},
          {"mpi", facts.mpi_version},
          {"nccl", facts.nccl_version}});
    info(r, "lockstep_rank_info",
         {{"rank", std::to_string(facts.rank)},
          {"local_rank", std::to_string(facts.local_rank)},
          {"node", facts.node}});
    for (const auto& [number, name] : kSignals) signals.Add({{"signal", name}});
    auto& phase_seconds = counter_family(r, "lockstep_step_phase_seconds_total");
    for (const auto& [name, member] : kPhases)
      phases.push_back(&phase_seconds.Add({{"phase", name}}));
  }

  NativeHistogram step_duration{kStepBounds_s}, allreduce_duration{kAllreduceBounds_s},
      data_wait{kAllreduceBounds_s};
  std::vector<prometheus::Counter*> phases;  // by kPhases, so that a step needs no look-up
  prometheus::Counter &stall, &written_bytes;
  prometheus::Counter &agreement_checks, &agreement_seconds;
  prometheus::Family<prometheus::Counter>& signals;
};

inline constexpr size_t kMaxClassSeries = 200;
inline constexpr size_t kMaxKpis = 50;

/// Series of the root only.
struct RunSeries {
  RunSeries(prometheus::Registry& r, const RunFacts& facts)
      : step(gauge(r, "lockstep_step")),
        epoch(gauge(r, "lockstep_epoch")),
        validation_loss(r, "lockstep_validation_loss"),
        validation_accuracy(r, "lockstep_validation_accuracy_ratio"),
        validation_metrics(gauge_family(r, "lockstep_validation_metric")),
        validation_classes(r, "lockstep_validation_class_metric", kMaxClassSeries,
                           "train/evals.csv"),
        kpis(r, "lockstep_kpi", kMaxKpis, "TensorBoard"),
        skipped_validations(counter(r, "lockstep_validations_skipped_total")),
        exports(counter(r, "lockstep_exports_total")),
        export_failures(counter(r, "lockstep_export_failures_total")),
        saves(counter(r, "lockstep_checkpoint_saves_total")),
        save_failures(counter(r, "lockstep_checkpoint_save_failures_total")),
        save_interval(r, "lockstep_checkpoint_interval_seconds"),
        save_interval_steps(r, "lockstep_checkpoint_interval_steps"),
        last_commit(r, "lockstep_checkpoint_last_success_timestamp_seconds"),
        last_saved_step(r, "lockstep_checkpoint_last_step"),
        free_bytes(r, "lockstep_checkpoint_free_bytes"),
        restores(counter(r, "lockstep_checkpoint_restores_total")),
        damaged_saves(counter(r, "lockstep_checkpoint_damaged_saves_total")),
        restore_duration(r, "lockstep_checkpoint_restore_duration_seconds"),
        takeover(r, "lockstep_takeover_seconds"),
        goodput(r, "lockstep_goodput_ratio") {
    info(r, "lockstep_run_info",
         {{"run", facts.run_name},
          {"model", facts.model},
          {"launcher", facts.launcher},
          {"config_sha", facts.config_sha}});
    gauge(r, "lockstep_run_start_timestamp_seconds").Set(unix_time_s());
    gauge(r, "lockstep_world_ranks").Set(facts.world_size);
    if (facts.restarts) gauge(r, "lockstep_restarts").Set(static_cast<double>(*facts.restarts));
    if (facts.spares) add_spares(r, *facts.spares);
    add_states(gauge_family(r, "lockstep_run_state"));
  }

  static void add_spares(prometheus::Registry& r, const SpareFacts& facts) {
    gauge(r, "lockstep_spare_processes").Set(facts.num_left);
    prometheus::Family<prometheus::Counter>& lost = counter_family(r, "lockstep_lost_ranks_total");
    lost.Add({{"cause", "ended"}}).Increment(facts.num_ended);
    lost.Add({{"cause", "hung"}}).Increment(facts.num_hung);
  }

  void add_states(prometheus::Family<prometheus::Gauge>& family) {
    for (int i = 0; i < kNumRunStates; ++i)
      states.push_back(&family.Add({{"state", state_name(static_cast<RunState>(i))}}));
  }

  prometheus::Gauge &step, &epoch;
  OptionalGauge validation_loss, validation_accuracy;
  prometheus::Family<prometheus::Gauge>& validation_metrics;
  CappedGauges validation_classes, kpis;
  prometheus::Counter &skipped_validations, &exports, &export_failures;
  prometheus::Counter &saves, &save_failures;
  NativeHistogram save_duration{kSaveBounds_s};
  OptionalGauge save_interval, save_interval_steps, last_commit, last_saved_step, free_bytes;
  prometheus::Counter &restores, &damaged_saves;
  OptionalGauge restore_duration, takeover, goodput;
  std::vector<prometheus::Counter*> lost;  // by TimeUse, without the first one
  std::vector<prometheus::Gauge*> states;  // by RunState
  prometheus::Counter* event_file_errors = nullptr;
};

// GPU: facts are set once as normal gauges. The allocator's numbers are read at each scrape, so
// they are families that are built each time.

namespace {

// The trainer's thread writes; the server's thread builds pages. prometheus-cpp's metrics are
// thread-safe; the rest has its own locks.

using prometheus::MetricFamily;
using prometheus::Registry;

constexpr const char* kRunInfo = "lockstep_run_info";  ///< already has the run's name

/// Returns the lines logged by this process, read when the page is made, as the functions below.
MetricFamily log_lines() {
  MetricFamily family{"lockstep_log_messages_total",
                      series_info("lockstep_log_messages_total").help,
                      prometheus::MetricType::Counter,
                      {}};
  for (size_t level = 0; level < log::kLevelNames.size(); ++level) {
    prometheus::ClientMetric& metric = family.metric.emplace_back();
    metric.label = {{"level", std::string(log::kLevelNames[level])}};
    metric.counter.value = static_cast<double>(log::num_lines(static_cast<log::Level>(level)));
  }
  return family;
}

std::vector<MetricFamily> gpu_use_families(const GpuUse& use) {
  const auto family = [](const char* name, int64_t value) {
    return family_of(name, static_cast<double>(value));
  };
  return {family("lockstep_gpu_memory_allocated_bytes", use.allocated_bytes),
          family("lockstep_gpu_memory_reserved_bytes", use.reserved_bytes),
          family("lockstep_gpu_memory_peak_bytes", use.peak_bytes),
          family("lockstep_gpu_ooms_total", use.num_ooms)};
}

/// Adds a histogram, which the registry does not hold, to a page.
void add_histogram(const char* name, const NativeHistogram& histogram, PageContent* content) {
  HistogramSample& sample = content->histograms[name] = histogram.collect();
  MetricFamily& family = content->families.emplace_back(
      MetricFamily{name, series_info(name).help, prometheus::MetricType::Histogram, {}});
  family.metric.emplace_back().histogram = sample.classic;
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
  constexpr std::array<const char*, kNumRunStates> kNames = {
      "initializing", "restoring", "training", "validating", "saving",
      "draining",     "paused",    "finished", "failed"};
  return kNames.at(static_cast<size_t>(state));
}

void add_gpu_series(prometheus::Registry& registry, const GpuFacts& gpu) {
  info(registry, "lockstep_gpu_info",
       {{"index", std::to_string(gpu.index)},
        {"name", gpu.name},
        {"id", gpu.id},
        {"visible_devices", gpu.visible_devices},
        {"memory_policy", gpu.memory_policy}});
  gauge(registry, "lockstep_gpu_memory_bytes").Set(static_cast<double>(gpu.memory_bytes));
  gauge(registry, "lockstep_gpu_memory_limit_bytes")
      .Set(static_cast<double>(gpu.memory_limit_bytes));
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
  rank_->step_duration.observe(sample.duration_s, sample.step);
  rank_->data_wait.observe(sample.phases.data, sample.step);
  for (const double seconds : sample.allreduce_s_by_bucket)
    rank_->allreduce_duration.observe(seconds, sample.step);
  for (size_t i = 0; i < kPhases.size(); ++i)
    rank_->phases[i]->Increment(sample.phases.*kPhases[i].second);
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
  run_->save_duration.observe(sample.duration_s, sample.step);
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

void TrainingMetrics::record_takeover(int64_t step, double duration_s) {
  if (!run_) return;
  run_->takeover.set(duration_s);
  run_->step.Set(static_cast<double>(step));
}

void TrainingMetrics::set_run_time(const RunTime& time) {
  if (!run_) return;
  // Created late: a counter that begins at 0 and jumps to the sum of earlier starts would look as
  // if all of it were lost now.
  if (run_->lost.empty()) {
    auto& family = counter_family(*registry_, "lockstep_lost_seconds_total");
    for (size_t use = 1; use < kNumTimeUses; ++use)
      run_->lost.push_back(&family.Add({{"cause", name_of(static_cast<TimeUse>(use))}}));
  }
  run_->goodput.set(time.goodput());
  for (size_t i = 0; i < run_->lost.size(); ++i) {
    prometheus::Counter& counter = *run_->lost[i];
    // A wait is moved to its cause when that is known, so a use may shrink for a moment.
    counter.Increment(std::max(0.0, time.seconds[i + 1] - counter.Value()));
  }
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

PageContent TrainingMetrics::content(PageFormat format) const {
  PageContent content{registry_->Collect()};
  std::vector<MetricFamily>& all = content.families;
  add_histogram("lockstep_step_duration_seconds", rank_->step_duration, &content);
  add_histogram("lockstep_allreduce_duration_seconds", rank_->allreduce_duration, &content);
  // Its classic buckets would be ten more series of each rank on a page without native ones.
  if (format == PageFormat::kProtobuf)
    add_histogram("lockstep_data_wait_duration_seconds", rank_->data_wait, &content);
  if (run_)
    add_histogram("lockstep_checkpoint_save_duration_seconds", run_->save_duration, &content);
  all.push_back(log_lines());
  all.push_back(family_of("lockstep_log_lost_lines_total", static_cast<double>(log::num_lost())));
  for (MetricFamily& family : process_families()) all.push_back(std::move(family));
  const std::lock_guard lock(gpu_mutex_);
  if (gpu_use_)
    for (MetricFamily& family : gpu_use_families(gpu_use_())) all.push_back(std::move(family));
  sort_for_readers(&all);
  return content;
}

std::string TrainingMetrics::page(PageFormat format) const {
  return page_in(format, content(format));
}

std::string TrainingMetrics::result() const {
  PageContent content = this->content(PageFormat::kText);
  std::vector<MetricFamily>& all = content.families;
  std::erase_if(all, [](const MetricFamily& family) { return !is_run_series(family.name); });
  // The text file collector of node exporter has many runs on one page.
  for (MetricFamily& family : all)
    for (prometheus::ClientMetric& metric : family.metric)
      if (family.name != kRunInfo) metric.label.push_back({"run", live_->facts.run_name});
  return page_in(PageFormat::kText, content);
}

std::string TrainingMetrics::live() const {
  const std::lock_guard lock(live_->mutex);
  return live_json(live_->facts, content(PageFormat::kText).families, live_->history.points(),
                   live_->ranks, unix_time_s());
}

}  // namespace lockstep::metrics
