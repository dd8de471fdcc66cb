#pragma once

#include <array>
#include <csignal>
#include <utility>
#include <vector>

#include "metrics/samples.h"
#include "metrics/series.h"
#include "metrics/table/capped_gauges.h"
#include "metrics/unix_time.h"

/// Series of TrainingMetrics, which alone includes this file.
namespace lockstep::metrics {

/// Counters of a family, one per phase, so that a step needs no look-up.
struct PhaseCounters {
  explicit PhaseCounters(prometheus::Family<prometheus::Counter>& family)
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

  prometheus::Counter &data, &forward, &backward, &allreduce, &optimizer, &modifier, &other;
};

inline constexpr std::array kSignals = {
    std::pair{SIGHUP, "SIGHUP"},   std::pair{SIGINT, "SIGINT"},   std::pair{SIGTERM, "SIGTERM"},
    std::pair{SIGUSR1, "SIGUSR1"}, std::pair{SIGUSR2, "SIGUSR2"},
};

// Histogram bounds. Each bound is a series, so there are few, denser where values are likely.
inline const prometheus::Histogram::BucketBoundaries kStepBounds_s{
    0.001, 0.0025, 0.006, 0.015, 0.04, 0.1, 0.25, 0.6, 1.5, 4, 10, 25, 60},
    kAllreduceBounds_s{0.0001, 0.0005, 0.002, 0.01, 0.05, 0.5, 10},
    kSaveBounds_s{0.1, 0.5, 2, 10, 60, 300, 1800};

/// Series of every rank.
struct RankSeries {
  RankSeries(prometheus::Registry& r, const RunFacts& facts)
      : step_duration(histogram_family(r, "lockstep_step_duration_seconds").Add({}, kStepBounds_s)),
        allreduce_duration(
            histogram_family(r, "lockstep_allreduce_duration_seconds").Add({}, kAllreduceBounds_s)),
        phases(counter_family(r, "lockstep_step_phase_seconds_total")),
        stall(counter(r, "lockstep_checkpoint_stall_seconds_total")),
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
  }

  prometheus::Histogram &step_duration, &allreduce_duration;
  PhaseCounters phases;
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
        save_duration(histogram_family(r, "lockstep_checkpoint_save_duration_seconds")
                          .Add({}, kSaveBounds_s)),
        save_interval(r, "lockstep_checkpoint_interval_seconds"),
        save_interval_steps(r, "lockstep_checkpoint_interval_steps"),
        last_commit(r, "lockstep_checkpoint_last_success_timestamp_seconds"),
        last_saved_step(r, "lockstep_checkpoint_last_step"),
        free_bytes(r, "lockstep_checkpoint_free_bytes"),
        restores(counter(r, "lockstep_checkpoint_restores_total")),
        damaged_saves(counter(r, "lockstep_checkpoint_damaged_saves_total")),
        restore_duration(r, "lockstep_checkpoint_restore_duration_seconds") {
    info(r, "lockstep_run_info",
         {{"run", facts.run_name},
          {"model", facts.model},
          {"launcher", facts.launcher},
          {"config_sha", facts.config_sha}});
    gauge(r, "lockstep_run_start_timestamp_seconds").Set(unix_time_s());
    gauge(r, "lockstep_world_ranks").Set(facts.world_size);
    if (facts.restarts) gauge(r, "lockstep_restarts").Set(static_cast<double>(*facts.restarts));
    add_states(gauge_family(r, "lockstep_run_state"));
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
  prometheus::Histogram& save_duration;
  OptionalGauge save_interval, save_interval_steps, last_commit, last_saved_step, free_bytes;
  prometheus::Counter &restores, &damaged_saves;
  OptionalGauge restore_duration;
  std::vector<prometheus::Gauge*> states;  // by RunState
  prometheus::Counter* event_file_errors = nullptr;
};

}  // namespace lockstep::metrics
