#include "metrics/series_table.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/error.h"

// Table of all series in two parts, series of each rank and series of the run, and its Markdown.
namespace lockstep::metrics {
namespace {

const SeriesInfo* find_in(std::span<const SeriesInfo> rows, std::string_view name) {
  const auto found =
      std::find_if(rows.begin(), rows.end(), [=](const auto& row) { return row.name == name; });
  return found == rows.end() ? nullptr : &*found;
}

/// Formats "rank, node" as "`rank`, `node`".
std::string quoted(std::string_view labels) {
  std::string text = "`";
  for (const char c : labels) text += c == ',' ? "`," : c == ' ' ? " `" : std::string(1, c);
  return labels.empty() ? "" : text + "`";
}

const char* remark_on(SeriesInfo::Presence presence) {
  return presence == SeriesInfo::kLate     ? "; late"
         : presence == SeriesInfo::kNative ? "; protobuf only"
                                           : "";
}

/// Adds a line of the Markdown table for each row.
void add_rows(std::span<const SeriesInfo> rows, std::string* text) {
  for (const SeriesInfo& row : rows) {
    std::string_view help = row.help;
    help.remove_suffix(1);  // the full stop
    *text += fmt::format("| `{}` | {} | {} | {} | {}{} |\n", row.name, kind_name(row.kind),
                         row.unit, quoted(row.labels), help, remark_on(row.presence));
  }
}

// Series of each rank. docs/metrics.md is generated from these rows.

using enum SeriesInfo::Kind;
using enum SeriesInfo::Presence;

constexpr SeriesInfo kRankSeries[] = {
    {"lockstep_build_info", kGauge, "1", "version, commit, torch, mpi, nccl", kAlways,
     "Versions of the binary and its libraries; empty if unused."},
    {"lockstep_rank_info", kGauge, "1", "rank, local_rank, node", kAlways,
     "Number of this rank in the world."},
    {"lockstep_gpu_info", kGauge, "1", "index, name, id, visible_devices, memory_policy", kLate,
     "GPU of this rank."},
    {"lockstep_gpu_memory_bytes", kGauge, "bytes", "", kLate, "Memory of this rank's GPU."},
    {"lockstep_gpu_memory_limit_bytes", kGauge, "bytes", "", kLate, "GPU memory limit of tensors."},
    {"lockstep_gpu_memory_allocated_bytes", kGauge, "bytes", "", kLate,
     "GPU memory in tensors, by LibTorch's allocator."},
    {"lockstep_gpu_memory_reserved_bytes", kGauge, "bytes", "", kLate,
     "GPU memory held by the allocator, in use or cached."},
    {"lockstep_gpu_memory_peak_bytes", kGauge, "bytes", "", kLate,
     "Peak GPU memory in tensors since the process started."},
    {"lockstep_gpu_ooms_total", kCounter, "allocations", "", kLate,
     "GPU allocations that failed for lack of memory."},
    {"lockstep_steps_total", kCounter, "steps", "", kAlways, "Optimizer steps of this process."},
    {"lockstep_samples_total", kCounter, "samples", "", kAlways, "Samples this rank trained on."},
    {"lockstep_last_step_timestamp_seconds", kGauge, "s since 1970", "", kLate,
     "End of the last step."},
    {"lockstep_skipped_samples_total", kCounter, "samples", "", kAlways,
     "Damaged samples replaced by others (data.on_error: skip)."},
    {"lockstep_data_records_total", kCounter, "records", "", kAlways,
     "Records read from files, mixup's partners included; 0 for generated or cached samples."},
    {"lockstep_data_read_bytes_total", kCounter, "bytes", "", kAlways,
     "Bytes of these records in their files."},
    {"lockstep_data_queue_batches", kGauge, "batches", "", kLate,
     "Batches ready after the last step took its own; absent with data.loader_threads: 0."},
    {"lockstep_straggler_steps_total", kCounter, "steps", "", kAlways,
     "Steps with over 30 % more work (data, forward, backward) than the other ranks' mean."},
    {"lockstep_nonfinite_steps_total", kCounter, "steps", "", kAlways,
     "Steps skipped for NaN or Inf; with sync.sync_replicas: false, by this rank."},
    {"lockstep_step_duration_seconds", kHistogram, "s", "", kAlways,
     "Duration of a step; 13 bounds, 1 ms to 60 s."},
    {"lockstep_step_phase_seconds_total", kCounter, "s", "phase", kAlways,
     "Step time by phase: data, forward, backward, allreduce, optimizer, modifier, other."},
    {"lockstep_data_wait_duration_seconds", kHistogram, "s", "", kNative,
     "Time of a step's phase data; 0.1 ms to 10 s."},
    {"lockstep_allreduce_bytes_total", kCounter, "bytes", "", kAlways, "All-reduce payload."},
    {"lockstep_allreduce_saved_bytes_total", kCounter, "bytes", "", kAlways,
     "Payload saved by packing and bf16, relative to dense float32 gradients."},
    {"lockstep_allreduce_sent_bytes_total", kCounter, "bytes", "", kAlways,
     "Lower bound of bytes sent: 2 (N - 1) / N of the payload."},
    {"lockstep_allreduce_duration_seconds", kHistogram, "s", "", kAlways,
     "Duration of a bucket's all-reduce, on GPUs of its launch; 0.1 ms to 10 s."},
    {"lockstep_allreduce_seconds_total", kCounter, "s", "", kAlways,
     "Time in gradient all-reduces, overlapped or not."},
    {"lockstep_allreduce_overlapped_seconds_total", kCounter, "s", "", kAlways,
     "All-reduce time overlapped with backward or the update."},
    {"lockstep_gather_bytes_total", kCounter, "bytes", "", kAlways,
     "Values all-gathered after updates, over all ranks (sync.shard_optimizer)."},
    {"lockstep_gather_seconds_total", kCounter, "s", "", kAlways, "Time in these all-gathers."},
    {"lockstep_allreduce_exposed_seconds_total", kCounter, "s", "", kAlways,
     "Wait for all-reduce that is not overlapped; lowest on the slowest rank."},
    {"lockstep_agreement_checks_total", kCounter, "checks", "", kAlways,
     "Comparisons of the whole state across ranks."},
    {"lockstep_agreement_seconds_total", kCounter, "s", "", kAlways, "Time in these comparisons."},
    {"lockstep_checkpoint_stall_seconds_total", kCounter, "s", "", kAlways,
     "Time that training waited for saves."},
    {"lockstep_checkpoint_written_bytes_total", kCounter, "bytes", "", kAlways,
     "Checkpoint bytes written by this rank."},
    {"lockstep_signals_total", kCounter, "signals", "signal", kAlways,
     "Signals received: SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2."},
    {"lockstep_log_messages_total", kCounter, "lines", "level", kAlways,
     "Lines logged, printed or not: debug, info, warning, error."},
    {"lockstep_log_lost_lines_total", kCounter, "lines", "", kAlways,
     "Lines lost by stderr or a log file: no reader, full or hanging disk."},
    {"lockstep_http_requests_total", kCounter, "requests", "handler, code", kAlways,
     "Requests answered; handler: a page above, or other."},
    {"lockstep_http_request_duration_seconds", kHistogram, "s", "handler", kAlways,
     "Time from request header to end of answer; 1 ms to 1 s; handler: /metrics or other."},
    {"lockstep_http_rejected_connections_total", kCounter, "connections", "reason", kAlways,
     "Connections closed: limit, timeout, header (malformed, too large), body (too large), "
     "credentials (missing, wrong, too many tries), tls (no handshake)."},
    {"lockstep_http_missing_ranks", kGauge, "ranks", "", kAlways,
     "Ranks that did not answer this page in time; metrics.scope node and run."},
    {"process_start_time_seconds", kGauge, "s since 1970", "", kAlways, "Start of the process."},
    {"process_cpu_seconds_total", kCounter, "s", "", kAlways, "User and system time."},
    {"process_resident_memory_bytes", kGauge, "bytes", "", kAlways, "Resident memory."},
    {"process_open_fds", kGauge, "descriptors", "", kAlways, "Open file descriptors."},
    {"process_max_fds", kGauge, "descriptors", "", kAlways, "Limit of open file descriptors."},
};

// Series of the run, exported by rank 0 only. docs/metrics.md is generated from these rows.

constexpr SeriesInfo kRunSeries[] = {
    {"lockstep_run_info", kGauge, "1", "run, model, launcher, config_sha", kAlways,
     "Facts of the run."},
    {"lockstep_run_state", kGauge, "0 or 1", "state", kAlways,
     "1 for one of initializing, restoring, training, validating, saving, draining, paused, "
     "finished, "
     "failed."},
    {"lockstep_run_start_timestamp_seconds", kGauge, "s since 1970", "", kAlways,
     "Start of the run in this process."},
    {"lockstep_world_ranks", kGauge, "ranks", "", kAlways, "Ranks of the world."},
    {"lockstep_restarts", kGauge, "starts", "", kAlways,
     "Earlier starts of the run; absent if the launcher does not report them."},
    {"lockstep_spare_processes", kGauge, "processes", "", kAlways,
     "Processes that wait for the place of a lost rank; absent without --spares."},
    {"lockstep_lost_ranks_total", kCounter, "ranks", "cause", kAlways,
     "Lost ranks in whose places the run continued, by cause: ended or hung; absent without "
     "--spares."},
    {"lockstep_takeover_seconds", kGauge, "s", "", kLate,
     "Time from the notice of the last lost rank until the run continued."},
    {"lockstep_goodput_ratio", kGauge, "0 to 1", "", kLate,
     "Productive share of the run's time over all its starts, without its queue."},
    {"lockstep_lost_seconds_total", kCounter, "s", "cause", kLate,
     "Time of the run that was not productive, over all its starts: start, data, save_stall, "
     "evaluation, mask_update, straggler, skipped_step, repeated_work, hang, down, queue, pause, "
     "other."},
    {"lockstep_step", kGauge, "steps", "", kAlways, "Global step."},
    {"lockstep_epoch", kGauge, "epochs", "", kAlways, "Epochs done, with fraction."},
    {"lockstep_epochs_planned", kGauge, "epochs", "", kAlways, "Epochs of the whole run."},
    {"lockstep_train_loss", kGauge, "-", "", kLate, "Training loss, mean over ranks, last logged."},
    {"lockstep_gradient_norm", kGauge, "-", "", kLate,
     "Norm of the last update's mean gradient before clipping (optimizer.clip_norm)."},
    {"lockstep_loss_scale", kGauge, "-", "", kLate,
     "Loss scale of the last step (train.precision: fp16)."},
    {"lockstep_learning_rate", kGauge, "-", "group", kLate,
     "Learning rate of the last step; group: weights, other."},
    {"lockstep_weight_decay", kGauge, "-", "group", kLate, "Weight decay of the last step."},
    {"lockstep_validation_loss", kGauge, "-", "", kLate, "Loss of the last evaluation."},
    {"lockstep_validation_accuracy_ratio", kGauge, "0 to 1", "", kLate,
     "Top-1 accuracy of the last evaluation."},
    {"lockstep_validation_metric", kGauge, "the metric's", "metric", kLate,
     "Last value of a metric of eval.metrics: top_5, perplexity."},
    {"lockstep_validation_class_metric", kGauge, "the metric's", "metric, class", kLate,
     "Last value by class (precision, recall), for at most 100 classes; at most 200 series."},
    {"lockstep_kpi", kGauge, "the KPI's", "kpi, mode", kLate,
     "Last value of a callback's KPI; mode: train, eval; at most 50 series."},
    {"lockstep_sparsity_ratio", kGauge, "0 to 1", "", kAlways, "Pruned / prunable parameters."},
    {"lockstep_target_sparsity_ratio", kGauge, "0 to 1", "modifier", kLate,
     "Current sparsity target of the schedule."},
    {"lockstep_parameters", kGauge, "parameters", "", kAlways, "Parameters of the model."},
    {"lockstep_prunable_parameters", kGauge, "parameters", "", kAlways,
     "Weights of linear layers and convolutions."},
    {"lockstep_trainable_parameters", kGauge, "parameters", "", kAlways,
     "Parameters that updates change."},
    {"lockstep_layer_sparsity_ratio", kGauge, "0 to 1", "param", kLate,
     "Pruned / all weights of a parameter (log_types of a pruning modifier, summary.per_layer); "
     "the first 200."},
    {"lockstep_mask_updates_total", kCounter, "masks", "", kAlways, "Masks computed."},
    {"lockstep_revived_weights_total", kCounter, "weights", "", kAlways,
     "Pruned weights found nonzero; must stay 0."},
    {"lockstep_quantized_layers", kGauge, "layers", "", kAlways, "Layers with fake quantization."},
    {"lockstep_pruned_parameters", kGauge, "parameters", "", kAlways,
     "Parameters that a mask keeps at zero."},
    {"lockstep_modifier_updates_total", kCounter, "updates", "modifier", kAlways,
     "Masks or rates set by a modifier."},
    {"lockstep_validations_skipped_total", kCounter, "saves", "", kAlways,
     "Checkpoints not evaluated because of eval.eval_throttle_secs."},
    {"lockstep_exports_total", kCounter, "models", "", kAlways,
     "Exports to saved_models attempted."},
    {"lockstep_export_failures_total", kCounter, "models", "", kAlways, "Exports that failed."},
    {"lockstep_checkpoint_saves_total", kCounter, "saves", "", kAlways, "Saves attempted."},
    {"lockstep_checkpoint_save_failures_total", kCounter, "saves", "", kAlways,
     "Saves that were not committed."},
    {"lockstep_checkpoint_save_duration_seconds", kHistogram, "s", "", kAlways,
     "Duration of committed saves; 0.1 s to 30 min."},
    {"lockstep_checkpoint_interval_seconds", kGauge, "s", "", kLate,
     "Expected seconds between commits."},
    {"lockstep_checkpoint_interval_steps", kGauge, "steps", "", kLate,
     "Expected steps between commits, for saves by steps."},
    {"lockstep_checkpoint_last_success_timestamp_seconds", kGauge, "s since 1970", "", kLate,
     "Last commit."},
    {"lockstep_checkpoint_last_step", kGauge, "steps", "", kLate,
     "Step of the last committed or restored checkpoint."},
    {"lockstep_checkpoint_free_bytes", kGauge, "bytes", "", kLate,
     "Free space in the checkpoint folder."},
    {"lockstep_checkpoint_restores_total", kCounter, "restores", "", kAlways,
     "Restores from a checkpoint."},
    {"lockstep_checkpoint_damaged_saves_total", kCounter, "saves", "", kAlways,
     "Checkpoints skipped as damaged."},
    {"lockstep_checkpoint_restore_duration_seconds", kGauge, "s", "", kLate,
     "Duration of the last restore."},
    {"lockstep_tensorboard_write_errors_total", kCounter, "writes", "", kAlways,
     "Failed writes of event files and points dropped from a full queue."},
};

}  // namespace

const char* kind_name(SeriesInfo::Kind kind) {
  constexpr std::array kNames = {"gauge", "counter", "histogram"};
  return kNames[kind];
}

const SeriesInfo& series_info(std::string_view name) {
  const SeriesInfo* found = find_in(rank_series(), name);
  if (found == nullptr) found = find_in(run_series(), name);
  if (found == nullptr)
    throw Error(ExitCode::kBug, "metrics",
                fmt::format("{} has no row in metrics/series_table.cpp", name));
  return *found;
}

bool is_run_series(std::string_view name) { return find_in(run_series(), name) != nullptr; }

std::string series_reference() {
  const std::string head = "| Name | Type | Unit | Labels | Meaning |\n|---|---|---|---|---|\n";
  std::string text = "Each rank:\n\n" + head;
  add_rows(rank_series(), &text);
  text += "\nThe run, from rank 0:\n\n" + head;
  add_rows(run_series(), &text);
  return text;
}

std::span<const SeriesInfo> rank_series() { return kRankSeries; }

std::span<const SeriesInfo> run_series() { return kRunSeries; }

}  // namespace lockstep::metrics
