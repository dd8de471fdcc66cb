#include "metrics/training_metrics.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <sstream>
#include <vector>

#include <prometheus/text_serializer.h>

#include "base/error.h"
#include "base/log.h"
#include "metrics/process_metrics.h"
#include "metrics/series.h"
#include "metrics/step_metrics.h"
#include "metrics/unix_time.h"

namespace lockstep::metrics {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::MetricFamily;
using prometheus::Registry;

/// One counter of a family for each phase, so that a step needs no look-up.
struct PhaseCounters {
  explicit PhaseCounters(Family<Counter>& family)
      : data(family.Add({{"phase", "data"}})),
        forward(family.Add({{"phase", "forward"}})),
        backward(family.Add({{"phase", "backward"}})),
        allreduce(family.Add({{"phase", "allreduce"}})),
        optimizer(family.Add({{"phase", "optimizer"}})),
        modifier(family.Add({{"phase", "modifier"}})),
        other(family.Add({{"phase", "other"}})) {}

  void add(const PhaseSeconds& seconds) {
    data.Increment(seconds.data);
    forward.Increment(seconds.forward);
    backward.Increment(seconds.backward);
    allreduce.Increment(seconds.allreduce);
    optimizer.Increment(seconds.optimizer);
    modifier.Increment(seconds.modifier);
    other.Increment(seconds.other);
  }

  Counter &data, &forward, &backward, &allreduce, &optimizer, &modifier, &other;
};

constexpr std::array kSignals = {
    std::pair{SIGHUP, "SIGHUP"},   std::pair{SIGINT, "SIGINT"},   std::pair{SIGTERM, "SIGTERM"},
    std::pair{SIGUSR1, "SIGUSR1"}, std::pair{SIGUSR2, "SIGUSR2"},
};

/// Lines logged by this process, read when the page is made.
MetricFamily log_lines() {
  MetricFamily family{"lockstep_log_messages_total",
                      "Lines logged, printed or not, by level.",
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
    case RunState::kFinished:
      return "finished";
    case RunState::kFailed:
      return "failed";
  }
  return "failed";
}

/// What every rank exports.
struct TrainingMetrics::RankSeries {
  RankSeries(Registry& r, const RunFacts& facts)
      : step_duration(
            histogram_family(r, "lockstep_step_duration_seconds", "Duration of a whole step.")
                .Add({}, bounds(0.001, 2, 17))),
        phases(counter_family(r, "lockstep_step_phase_seconds_total",
                              "Seconds of steps spent in each phase.")),
        stall(counter(r, "lockstep_checkpoint_stall_seconds_total",
                      "Seconds training stood still for a save.")),
        written_bytes(counter(r, "lockstep_checkpoint_written_bytes_total",
                              "Checkpoint bytes this rank wrote.")),
        agreement_checks(counter(r, "lockstep_agreement_checks_total",
                                 "Comparisons of the ranks' whole state.")),
        agreement_seconds(counter(r, "lockstep_agreement_seconds_total",
                                  "Seconds spent comparing the ranks' state.")),
        signals(counter_family(r, "lockstep_signals_total", "Signals received.")) {
    info(r, "lockstep_build_info", "Versions of this binary and its libraries; always 1.",
         {{"version", facts.version},
          {"commit", facts.commit},
          {"torch", facts.torch_version},
          {"mpi", facts.mpi_version},
          {"nccl", facts.nccl_version}});
    info(r, "lockstep_rank_info", "Place of this rank in the world; always 1.",
         {{"rank", std::to_string(facts.rank)},
          {"local_rank", std::to_string(facts.local_rank)},
          {"node", facts.node}});
    for (const auto& [number, name] : kSignals) signals.Add({{"signal", name}});
  }

  Histogram& step_duration;
  PhaseCounters phases;
  Counter &stall, &written_bytes;
  Counter &agreement_checks, &agreement_seconds;
  Family<Counter>& signals;
};

/// What only the root exports.
struct TrainingMetrics::RunSeries {
  RunSeries(Registry& r, const RunFacts& facts)
      : step(gauge(r, "lockstep_step", "Global step: updates done, counted on over restarts.")),
        epoch(gauge(r, "lockstep_epoch", "Epochs done, with fraction.")),
        validation_loss(r, "lockstep_validation_loss", "Loss of the last validation."),
        validation_accuracy(r, "lockstep_validation_accuracy_ratio",
                            "Top-1 accuracy of the last validation."),
        validation_metrics(gauge_family(r, "lockstep_validation_metric",
                                        "What a metric of the last validation gave.")),
        validation_classes(gauge_family(r, "lockstep_validation_class_metric",
                                        "What a metric of the last validation gave of a class.")),
        kpis(gauge_family(r, "lockstep_kpi", "What a KPI of callbacks gave last.")),
        skipped_validations(counter(r, "lockstep_validations_skipped_total",
                                    "Saves that were not validated, for lack of time since the "
                                    "last validation.")),
        exports(counter(r, "lockstep_exports_total", "Models that were to be published.")),
        export_failures(
            counter(r, "lockstep_export_failures_total", "Models that could not be published.")),
        saves(counter(r, "lockstep_checkpoint_saves_total", "Saves attempted.")),
        save_failures(counter(r, "lockstep_checkpoint_save_failures_total",
                              "Saves that were not committed.")),
        save_duration(
            histogram_family(r, "lockstep_checkpoint_save_duration_seconds",
                             "Duration of a committed save, from its start to its commit.")
                .Add({}, bounds(0.1, 2.5, 12))),
        save_interval(r, "lockstep_checkpoint_interval_seconds",
                      "Seconds expected from one commit to the next."),
        last_commit(r, "lockstep_checkpoint_last_success_timestamp_seconds",
                    "When the last save was committed, in seconds since 1970."),
        last_saved_step(r, "lockstep_checkpoint_last_step", "Step of the last committed save."),
        free_bytes(r, "lockstep_checkpoint_free_bytes", "Free space in the checkpoint folder."),
        restores(counter(r, "lockstep_checkpoint_restores_total", "Restores from a save.")),
        restore_duration(r, "lockstep_checkpoint_restore_duration_seconds",
                         "Duration of the last restore.") {
    info(r, "lockstep_run_info", "Facts of the run; always 1.",
         {{"run", facts.run_name},
          {"model", facts.model},
          {"launcher", facts.launcher},
          {"config_sha", facts.config_sha}});
    gauge(r, "lockstep_world_ranks", "Ranks of the world.").Set(facts.world_size);
    if (facts.restarts)
      gauge(r, "lockstep_restarts", "Times this run was started before.")
          .Set(static_cast<double>(*facts.restarts));
    add_states(
        gauge_family(r, "lockstep_run_state", "1 for the state the run is in, 0 for the others."));
  }

  void add_states(Family<Gauge>& family) {
    for (int i = 0; i < kNumRunStates; ++i)
      states.push_back(&family.Add({{"state", state_name(static_cast<RunState>(i))}}));
  }

  Gauge &step, &epoch;
  OptionalGauge validation_loss, validation_accuracy;
  Family<Gauge>&validation_metrics, &validation_classes, &kpis;
  Counter &skipped_validations, &exports, &export_failures;
  Counter &saves, &save_failures;
  Histogram& save_duration;
  OptionalGauge save_interval, last_commit, last_saved_step, free_bytes;
  Counter& restores;
  OptionalGauge restore_duration;
  std::vector<Gauge*> states;  // by RunState
  Counter* event_file_errors = nullptr;
};

TrainingMetrics::TrainingMetrics(const RunFacts& facts)
    : registry_(std::make_unique<Registry>(Registry::InsertBehavior::Throw)),
      rank_(std::make_unique<RankSeries>(*registry_, facts)),
      recipe_(std::make_unique<RecipeMetrics>()) {
  if (facts.is_root) add_run_series(facts);
  step_ = std::make_unique<StepSeries>(*registry_, facts.is_root);  // last: it names what is taken
}

void TrainingMetrics::add_run_series(const RunFacts& facts) {
  run_ = std::make_unique<RunSeries>(*registry_, facts);
  recipe_ = std::make_unique<RecipeMetrics>(*registry_, facts.modifiers, facts.param_groups);
  run_->event_file_errors =
      &counter(*registry_, "lockstep_tensorboard_write_errors_total",
               "Failed writes of the TensorBoard event file; its newest points are lost.");
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
  rank_->phases.add(sample.phases);
  if (!run_) return;
  run_->step.Set(static_cast<double>(sample.step));
  run_->epoch.Set(sample.epoch);
}

void TrainingMetrics::record_validation(const ValidationSample& sample) {
  if (!run_) return;
  run_->validation_loss.set(sample.loss);
  if (sample.accuracy) run_->validation_accuracy.set(*sample.accuracy);
  for (const ValidationValue& found : sample.values) {
    if (found.class_number)
      run_->validation_classes
          .Add({{"metric", found.name}, {"class", std::to_string(*found.class_number)}})
          .Set(found.value);
    else
      run_->validation_metrics.Add({{"metric", found.name}}).Set(found.value);
  }
}

void TrainingMetrics::set_kpi(const std::string& mode, const std::string& name, double value) {
  if (run_) run_->kpis.Add({{"kpi", name}, {"mode", mode}}).Set(value);
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
  run_->restore_duration.set(sample.duration_s);
  run_->step.Set(static_cast<double>(sample.step));
  run_->last_saved_step.set(static_cast<double>(sample.step));
}

void TrainingMetrics::set_checkpoint_interval(double interval_s) {
  if (run_) run_->save_interval.set(interval_s);
}

void TrainingMetrics::set_replica_checks(int64_t num_checks, double seconds) {
  rank_->agreement_checks.Increment(static_cast<double>(num_checks) -
                                    rank_->agreement_checks.Value());
  rank_->agreement_seconds.Increment(seconds - rank_->agreement_seconds.Value());
}

void TrainingMetrics::record_signal(int signal_number) {
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

std::string TrainingMetrics::page() const {
  std::vector<MetricFamily> families = registry_->Collect();
  families.push_back(log_lines());
  for (MetricFamily& family : ProcessMetrics().Collect()) families.push_back(std::move(family));
  sort_for_readers(&families);
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families);
  return std::move(text).str();
}

}  // namespace lockstep::metrics
