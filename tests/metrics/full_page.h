#pragma once

#include <array>

#include "metrics/exposition.h"
#include "metrics/goodput.h"
#include "metrics/training_metrics.h"

namespace lockstep::tests {

inline metrics::RunFacts some_facts(bool is_root = true) {
  return {.version = "0.1.0",
          .commit = "abc",
          .torch_version = "2.11.0",
          .mpi_version = "4.1.4",
          .nccl_version = "",
          .run_name = "digits \"quoted\"\\",
          .model = "digits_net",
          .launcher = "mpirun",
          .config_sha = "0123",
          .rank = is_root ? 0 : 1,
          .local_rank = is_root ? 0 : 1,
          .node = "n1",
          .world_size = 2,
          .is_root = is_root,
          .modifiers = {"rate", "prune"},
          .param_groups = {"weights", "other"},
          .restarts = 1,
          .spares = metrics::SpareFacts{.num_left = 1, .num_ended = 2, .num_hung = 1}};
}

inline constexpr std::array kBucketSeconds{0.0005, 0.0015};

inline metrics::StepSample some_step(int64_t step) {
  return {.step = step,
          .epoch = 0.5,
          .num_samples = 32,
          .num_records = 40,
          .num_record_bytes = 1 << 10,
          .num_queued_batches = 3,
          .duration_s = 0.01,
          .phases = {.data = 0.001,
                     .forward = 0.002,
                     .backward = 0.003,
                     .allreduce = 0.0005,
                     .optimizer = 0.0025,
                     .modifier = 0.00075,
                     .other = 0.00025},
          .bytes_reduced = 4096,
          .bytes_saved = 1024,
          .bytes_sent = 4096,
          .allreduce_s = 0.002,
          .allreduce_s_by_bucket = kBucketSeconds,
          .allreduce_overlapped_s = 0.0015,
          .bytes_gathered = 512,
          .gather_s = 0.001,
          .allreduce_exposed_s = 0.0005,
          .is_straggler = true,
          .nonfinite = false,
          .loss = 2.3,
          .gradient_norm = 0.75,
          .loss_scale = 1024};
}

inline void record_recipe(metrics::RecipeMetrics* recipe) {
  recipe->set_rates(std::array{metrics::GroupSample{0.1, 0.01}, metrics::GroupSample{0.2, 0}});
  recipe->set_parameter_counts(
      {.num_parameters = 120, .num_prunable = 100, .num_pruned = 25, .num_trainable = 110});
  recipe->set_target_sparsity(1, 0.5);
  recipe->record_modifier_update(1);
  recipe->add_mask_updates(3);
  recipe->add_revived_weights(0);
  recipe->set_layer_sparsity("conv.weight", 0.75);
  recipe->set_quantized_layers(4);
  recipe->set_epochs_planned(25);
}

/// Feeds everything once, so that every series is on the page.
inline void record_everything(metrics::TrainingMetrics* all) {
  all->record_step(some_step(1));
  all->record_validation({.loss = 1.25,
                          .accuracy = 0.75,
                          .values = {{"top_5", std::nullopt, 0.875}, {"recall", 2, 0.5}}});
  all->set_kpi("eval", "top_1", 0.75);
  all->record_save({.step = 1,
                    .committed = true,
                    .duration_s = 0.3,
                    .stall_s = 0.1,
                    .written_bytes = 1000,
                    .free_bytes = 1 << 20});
  all->record_restore({.step = 1, .duration_s = 0.2});
  all->record_takeover(1, 0.1);
  all->set_run_time({.seconds = {3, 1}, .num_starts = 1});
  all->set_checkpoint_interval(600);
  all->set_checkpoint_interval_steps(200);
  all->set_replica_checks(2, 0.5);
  record_recipe(&all->recipe());
  all->record_signal(10);
  metrics::add_gpu_series(all->registry(), {.index = 0,
                                            .id = "GPU-1f",
                                            .visible_devices = "2,3",
                                            .name = "2",
                                            .memory_policy = "all",
                                            .memory_bytes = 1 << 20,
                                            .memory_limit_bytes = 1 << 19});
  all->set_gpu_use([] {
    return metrics::GpuUse{
        .allocated_bytes = 100, .reserved_bytes = 300, .peak_bytes = 200, .num_ooms = 1};
  });
  all->set_event_file_errors(2);
}

}  // namespace lockstep::tests
