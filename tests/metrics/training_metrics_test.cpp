#include "metrics/training_metrics.h"

#include <algorithm>
#include <csignal>
#include <ctime>
#include <limits>
#include <map>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/log.h"
#include "full_page.h"
#include "parsed_page.h"

namespace lockstep::metrics {
namespace training_metrics_test {

using ::testing::HasSubstr;
using ::testing::Not;
using tests::Page;
using tests::page_of;
using tests::record_everything;
using tests::some_facts;
using tests::some_step;

TEST(TrainingMetrics, KnownSeriesStartAtZeroAndUnknownValuesAreAbsent) {
  const TrainingMetrics all(some_facts());
  const Page page = page_of(all);
  EXPECT_EQ(page.value("lockstep_steps_total"), 0);
  EXPECT_EQ(page.value("lockstep_step_phase_seconds_total{phase=\"backward\"}"), 0);
  EXPECT_EQ(page.value("lockstep_signals_total{signal=\"SIGTERM\"}"), 0);
  EXPECT_EQ(page.value("lockstep_modifier_updates_total{modifier=\"rate\"}"), 0);
  EXPECT_EQ(page.value("lockstep_step_duration_seconds_count"), 0);
  EXPECT_EQ(page.value("lockstep_run_state{state=\"initializing\"}"), 1);
  EXPECT_EQ(page.value("lockstep_world_ranks"), 2);
  EXPECT_THAT(page.text, Not(HasSubstr("lockstep_train_loss")));
  EXPECT_THAT(page.text, Not(HasSubstr("lockstep_target_sparsity_ratio")));
}

TEST(TrainingMetrics, AStepMovesItsSeries) {
  TrainingMetrics all(some_facts());
  const double before_s = static_cast<double>(std::time(nullptr));
  all.record_step(some_step(41));
  all.record_step(some_step(42));
  const Page page = page_of(all);
  EXPECT_EQ(page.value("lockstep_steps_total"), 2);
  EXPECT_EQ(page.value("lockstep_samples_total"), 64);
  EXPECT_EQ(page.value("lockstep_step"), 42);
  EXPECT_EQ(page.value("lockstep_epoch"), 0.5);
  EXPECT_EQ(page.value("lockstep_train_loss"), 2.3);
  EXPECT_EQ(page.value("lockstep_allreduce_bytes_total"), 8192);
  EXPECT_EQ(page.value("lockstep_allreduce_exposed_seconds_total"), 0.001);
  EXPECT_EQ(page.value("lockstep_nonfinite_steps_total"), 0);
  EXPECT_EQ(page.value("lockstep_step_duration_seconds_bucket{le=\"0.006\"}"), 0);
  EXPECT_EQ(page.value("lockstep_step_duration_seconds_bucket{le=\"0.015\"}"), 2);
  EXPECT_DOUBLE_EQ(page.value("lockstep_step_duration_seconds_sum"), 0.02);
  EXPECT_GE(page.value("lockstep_last_step_timestamp_seconds"), before_s);
  EXPECT_LE(page.value("lockstep_last_step_timestamp_seconds"), before_s + 10);
}

TEST(RecipeMetrics, ShowWhatARecipeDoes) {
  TrainingMetrics all(some_facts());
  tests::record_recipe(&all.recipe());
  all.set_replica_checks(2, 0.5);
  all.set_replica_checks(3, 0.75);
  const Page page = page_of(all);
  EXPECT_EQ(page.value("lockstep_learning_rate{group=\"weights\"}"), 0.1);
  EXPECT_EQ(page.value("lockstep_learning_rate{group=\"other\"}"), 0.2);
  EXPECT_EQ(page.value("lockstep_weight_decay{group=\"weights\"}"), 0.01);
  EXPECT_EQ(page.value("lockstep_sparsity_ratio"), 0.25);
  EXPECT_EQ(page.value("lockstep_trainable_parameters"), 110);
  EXPECT_EQ(page.value("lockstep_mask_updates_total"), 3);
  EXPECT_EQ(page.value("lockstep_revived_weights_total"), 0);
  EXPECT_EQ(page.value("lockstep_layer_sparsity_ratio{param=\"conv.weight\"}"), 0.75);
  EXPECT_EQ(page.value("lockstep_quantized_layers"), 4);
  EXPECT_EQ(page.value("lockstep_epochs_planned"), 25);
  EXPECT_EQ(page.value("lockstep_agreement_checks_total"), 3);
  EXPECT_EQ(page.value("lockstep_agreement_seconds_total"), 0.75);
}

/// Series of a name on a page.
int64_t num_series(const Page& page, const std::string& name) {
  return std::count_if(page.values.begin(), page.values.end(),
                       [&](const auto& entry) { return entry.first.starts_with(name + "{"); });
}

TEST(TrainingMetrics, WhatARunMayHoldManyOfIsBounded) {
  TrainingMetrics all(some_facts());
  const int64_t warnings = log::num_lines(log::Level::kWarning);
  ValidationSample many;
  for (int i = 0; i < 300; ++i) {
    all.recipe().set_layer_sparsity("layer" + std::to_string(i), 0.5);
    all.set_kpi("eval", "kpi" + std::to_string(i), 1);
    many.values.push_back({"recall", i, 0.5});
  }
  all.record_validation(many);
  all.recipe().set_layer_sparsity("layer3", 0.75);  // one that is shown still changes
  const Page page = page_of(all);
  EXPECT_EQ(num_series(page, "lockstep_layer_sparsity_ratio"), 200);
  EXPECT_EQ(num_series(page, "lockstep_kpi"), 50);
  EXPECT_EQ(num_series(page, "lockstep_validation_class_metric"), 200);
  EXPECT_EQ(page.value("lockstep_layer_sparsity_ratio{param=\"layer3\"}"), 0.75);
  EXPECT_FALSE(page.has("lockstep_layer_sparsity_ratio{param=\"layer200\"}"));
  EXPECT_EQ(log::num_lines(log::Level::kWarning) - warnings, 3) << "each name is told of once";
}

TEST(RecipeMetrics, ExportNothingAwayFromTheRoot) {
  TrainingMetrics all(some_facts(/*is_root=*/false));
  tests::record_recipe(&all.recipe());
  EXPECT_THAT(page_of(all).text, Not(HasSubstr("lockstep_learning_rate")));
}

TEST(TrainingMetrics, EachBucketOfGradientsIsObserved) {
  TrainingMetrics all(some_facts(/*is_root=*/false));
  all.record_step(some_step(1));  // 0.5 and 1.5 ms
  const Page page = page_of(all);
  const std::string bucket = "lockstep_allreduce_duration_seconds_bucket{le=";
  EXPECT_EQ(page.value(bucket + "\"0.0001\"}"), 0);
  EXPECT_EQ(page.value(bucket + "\"0.002\"}"), 2);
  EXPECT_DOUBLE_EQ(page.value("lockstep_allreduce_duration_seconds_sum"), 0.002);
}

TEST(TrainingMetrics, TellsWhatDataWasReadAndWhoWasSlow) {
  TrainingMetrics all(some_facts(/*is_root=*/false));
  EXPECT_FALSE(page_of(all).has("lockstep_data_queue_batches"));
  all.record_step(some_step(1));
  StepSample alone = some_step(2);
  alone.is_straggler = false;
  alone.num_queued_batches.reset();
  all.record_step(alone);
  const Page page = page_of(all);
  EXPECT_EQ(page.value("lockstep_data_records_total"), 80);
  EXPECT_EQ(page.value("lockstep_data_read_bytes_total"), 2048);
  EXPECT_EQ(page.value("lockstep_data_queue_batches"), 3);
  EXPECT_EQ(page.value("lockstep_straggler_steps_total"), 1);
}

TEST(TrainingMetrics, AsksTheAllocatorOfAGpuForEachPage) {
  TrainingMetrics all(some_facts(/*is_root=*/false));
  EXPECT_THAT(page_of(all).text, Not(HasSubstr("lockstep_gpu_memory")));
  int64_t num_asked = 0;
  all.set_gpu_use([&] { return GpuUse{.reserved_bytes = ++num_asked, .num_ooms = 7}; });
  EXPECT_EQ(page_of(all).value("lockstep_gpu_memory_reserved_bytes"), 1);
  const Page page = page_of(all);
  EXPECT_EQ(page.value("lockstep_gpu_memory_reserved_bytes"), 2);
  EXPECT_EQ(page.value("lockstep_gpu_ooms_total"), 7);
  EXPECT_EQ(page.types.at("lockstep_gpu_ooms_total"), "counter");
}

TEST(TrainingMetrics, EachPhaseCountsByItself) {
  TrainingMetrics all(some_facts());
  all.record_step(some_step(1));
  const Page page = page_of(all);
  const std::map<std::string, double> wanted = {
      {"data", 0.001},       {"forward", 0.002},    {"backward", 0.003}, {"allreduce", 0.0005},
      {"optimizer", 0.0025}, {"modifier", 0.00075}, {"other", 0.00025}};
  for (const auto& [phase, seconds] : wanted)
    EXPECT_EQ(page.value("lockstep_step_phase_seconds_total{phase=\"" + phase + "\"}"), seconds)
        << phase;
}

TEST(TrainingMetrics, AStepWithoutALossKeepsTheLastLogged) {
  TrainingMetrics all(some_facts());
  all.record_step(some_step(1));
  StepSample sample = some_step(2);
  sample.loss.reset();
  sample.nonfinite = true;
  all.record_step(sample);
  const Page page = page_of(all);
  EXPECT_EQ(page.value("lockstep_train_loss"), 2.3);
  EXPECT_EQ(page.value("lockstep_nonfinite_steps_total"), 1);
}

TEST(TrainingMetrics, ExportsAndValidationsThatWereLeftOutAreCounted) {
  TrainingMetrics all(some_facts());
  all.record_export(true);
  all.record_export(false);
  all.record_export(true);
  all.record_skipped_validation();
  const Page page = page_of(all);
  EXPECT_EQ(page.value("lockstep_exports_total"), 3);
  EXPECT_EQ(page.value("lockstep_export_failures_total"), 1);
  EXPECT_EQ(page.value("lockstep_validations_skipped_total"), 1);
}

TEST(TrainingMetrics, SavesAndFailuresCountApart) {
  TrainingMetrics all(some_facts());
  all.record_save({.step = 5,
                   .committed = true,
                   .duration_s = 0.2,
                   .stall_s = 0.5,
                   .written_bytes = 100,
                   .free_bytes = 9});
  all.record_save({.step = 10,
                   .committed = false,
                   .duration_s = 9,
                   .stall_s = 0.25,
                   .written_bytes = 50,
                   .free_bytes = {}});
  const Page page = page_of(all);
  EXPECT_EQ(page.value("lockstep_checkpoint_saves_total"), 2);
  EXPECT_EQ(page.value("lockstep_checkpoint_save_failures_total"), 1);
  EXPECT_EQ(page.value("lockstep_checkpoint_last_step"), 5);
  EXPECT_EQ(page.value("lockstep_checkpoint_save_duration_seconds_count"), 1);
  EXPECT_EQ(page.value("lockstep_checkpoint_stall_seconds_total"), 0.75);
  EXPECT_EQ(page.value("lockstep_checkpoint_written_bytes_total"), 150);
  EXPECT_EQ(page.value("lockstep_checkpoint_free_bytes"), 9);
}

TEST(TrainingMetrics, ARestoreSetsTheStep) {
  TrainingMetrics all(some_facts());
  all.record_restore({.step = 1200, .duration_s = 0.5, .num_damaged_saves = 2});
  const Page page = page_of(all);
  EXPECT_EQ(page.value("lockstep_step"), 1200);
  EXPECT_EQ(page.value("lockstep_steps_total"), 0);
  EXPECT_EQ(page.value("lockstep_checkpoint_restores_total"), 1);
  EXPECT_EQ(page.value("lockstep_checkpoint_damaged_saves_total"), 2);
  EXPECT_EQ(page.value("lockstep_checkpoint_restore_duration_seconds"), 0.5);
}

TEST(TrainingMetrics, SparesAndLostRanks) {
  TrainingMetrics all(some_facts());
  EXPECT_FALSE(page_of(all).types.contains("lockstep_takeover_seconds"));
  all.record_takeover(1200, 0.25);
  const Page page = page_of(all);
  EXPECT_EQ(page.value("lockstep_step"), 1200);
  EXPECT_EQ(page.value("lockstep_takeover_seconds"), 0.25);
  EXPECT_EQ(page.value("lockstep_spare_processes"), 1);
  EXPECT_EQ(page.value("lockstep_lost_ranks_total{cause=\"ended\"}"), 2);
  EXPECT_EQ(page.value("lockstep_lost_ranks_total{cause=\"hung\"}"), 1);
  EXPECT_EQ(page.value("lockstep_checkpoint_restores_total"), 0);
}

TEST(TrainingMetrics, OneStateAtATime) {
  TrainingMetrics all(some_facts());
  for (int i = 0; i < kNumRunStates; ++i) {
    all.set_state(static_cast<RunState>(i));
    const Page page = page_of(all);
    double sum = 0;
    for (int k = 0; k < kNumRunStates; ++k)
      sum += page.value("lockstep_run_state{state=\"" +
                        std::string(state_name(static_cast<RunState>(k))) + "\"}");
    EXPECT_EQ(sum, 1);
    EXPECT_EQ(page.value("lockstep_run_state{state=\"" +
                         std::string(state_name(static_cast<RunState>(i))) + "\"}"),
              1);
  }
}

TEST(TrainingMetrics, SignalsModifiersAndErrorsCount) {
  TrainingMetrics all(some_facts());
  all.record_signal(SIGUSR1);
  all.record_signal(SIGWINCH);
  all.recipe().record_modifier_update(0);
  all.recipe().set_target_sparsity(1, 0.5);
  all.set_event_file_errors(2);
  all.set_event_file_errors(2);
  all.set_event_file_errors(5);
  const Page page = page_of(all);
  EXPECT_EQ(page.value("lockstep_signals_total{signal=\"SIGUSR1\"}"), 1);
  EXPECT_EQ(page.value("lockstep_signals_total{signal=\"other\"}"), 1);
  EXPECT_EQ(page.value("lockstep_modifier_updates_total{modifier=\"rate\"}"), 1);
  EXPECT_EQ(page.value("lockstep_modifier_updates_total{modifier=\"prune\"}"), 0);
  EXPECT_EQ(page.value("lockstep_target_sparsity_ratio{modifier=\"prune\"}"), 0.5);
  EXPECT_EQ(page.value("lockstep_tensorboard_write_errors_total"), 5);
}

TEST(TrainingMetrics, LogLinesAndProcessFactsAreReadAtTheScrape) {
  const TrainingMetrics all(some_facts());
  const double warnings = page_of(all).value("lockstep_log_messages_total{level=\"warning\"}");
  log::warning("test", "one line for the counter");
  const Page page = page_of(all);
  EXPECT_EQ(page.value("lockstep_log_messages_total{level=\"warning\"}"), warnings + 1);
  EXPECT_GT(page.value("process_resident_memory_bytes"), 1e6);
  EXPECT_LT(page.value("process_resident_memory_bytes"), 1e12);
  EXPECT_GE(page.value("process_open_fds"), 3);
  EXPECT_GT(page.value("process_max_fds"), page.value("process_open_fds"));
  const double now_s = static_cast<double>(std::time(nullptr));
  EXPECT_NEAR(page.value("process_start_time_seconds"), now_s, 120);
  EXPECT_LT(page.value("process_cpu_seconds_total"), 120);
}

TEST(TrainingMetrics, LabelsAreEscapedAndInfosAreOne) {
  const TrainingMetrics all(some_facts());
  EXPECT_THAT(all.page(), HasSubstr("run=\"digits \\\"quoted\\\"\\\\\""));
  EXPECT_THAT(all.page(), HasSubstr("lockstep_rank_info{"));
}

TEST(TrainingMetrics, ANonFiniteLossStaysReadable) {
  TrainingMetrics all(some_facts());
  StepSample sample = some_step(1);
  sample.loss = std::numeric_limits<double>::quiet_NaN();
  all.record_step(sample);
  EXPECT_THAT(all.page(), HasSubstr("lockstep_train_loss NaN\n"));
}

TEST(TrainingMetrics, TwoModifiersOfOneNameAreABug) {
  RunFacts facts = some_facts();
  facts.modifiers = {"a", "a"};
  EXPECT_THROW(TrainingMetrics{facts}, Error);
}

TEST(TrainingMetrics, TheResultIsOfTheRunAndNamesIt) {
  RunFacts facts = some_facts();
  facts.run_name = "digits";
  TrainingMetrics all(facts);
  record_everything(&all);
  const std::string text = all.result();
  EXPECT_THAT(text, HasSubstr("\nlockstep_step{run=\"digits\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nlockstep_run_state{state=\"failed\",run=\"digits\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("run=\"digits\"} 1\n# HELP lockstep_run_start_timestamp_seconds"));
  for (const char* of_a_rank : {"lockstep_steps_total", "process_", "lockstep_http_"})
    EXPECT_THAT(text, Not(HasSubstr(of_a_rank)));
}

TEST(TrainingMetrics, PagesMayBeMadeWhileStepsAreRecorded) {
  TrainingMetrics all(some_facts());
  HttpMetrics http(all.registry());
  constexpr int kSteps = 20000;
  std::jthread trainer([&] {
    for (int step = 1; step <= kSteps; ++step) {
      all.record_step(some_step(step));
      if (step % 100 == 0) all.record_save({.step = step, .free_bytes = 5});
      if (step % 500 == 0) all.recipe().set_target_sparsity(1, 0.5);
    }
  });
  std::jthread server([&] {
    for (int i = 0; i < 1000; ++i) http.on_answer("/metrics", 200, 0.001);
  });
  double last = 0;
  for (int i = 0; i < 30; ++i) {
    const double steps = page_of(all).value("lockstep_steps_total");
    EXPECT_GE(steps, last);
    last = steps;
  }
  trainer.join();
  EXPECT_EQ(page_of(all).value("lockstep_steps_total"), kSteps);
  EXPECT_EQ(page_of(all).value("lockstep_step_duration_seconds_count"), kSteps);
}

}  // namespace training_metrics_test
}  // namespace lockstep::metrics
