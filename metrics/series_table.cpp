#include "metrics/series_table.h"

#include <algorithm>

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
  return labels.empty() ? "-" : text + "`";
}

/// Adds a line of the Markdown table for each row.
void add_rows(std::span<const SeriesInfo> rows, const char* ranks, std::string* text) {
  for (const SeriesInfo& row : rows) {
    std::string_view help = row.help;
    help.remove_suffix(1);  // the full stop
    *text += fmt::format("| `{}` | {} | {} | {} | {} | {}{} |\n", row.name, kind_name(row.kind),
                         row.unit, quoted(row.labels), ranks, help,
                         row.presence == SeriesInfo::kLate ? "; late" : "");
  }
}

}  // namespace

const char* kind_name(SeriesInfo::Kind kind) {
  switch (kind) {
    case SeriesInfo::kGauge:
      return "gauge";
    case SeriesInfo::kCounter:
      return "counter";
    case SeriesInfo::kHistogram:
      return "histogram";
  }
  return "gauge";
}

const SeriesInfo& series_info(std::string_view name) {
  const SeriesInfo* found = find_in(rank_series(), name);
  if (found == nullptr) found = find_in(run_series(), name);
  if (found == nullptr)
    throw Error(ExitCode::kBug, "metrics", fmt::format("{} has no row in metrics/table", name));
  return *found;
}

bool is_run_series(std::string_view name) { return find_in(run_series(), name) != nullptr; }

std::string series_reference() {
  std::string text =
      "| Name | Type | Unit | Labels | Ranks | Meaning |\n| --- | --- | --- | --- | --- | --- |\n";
  add_rows(rank_series(), "each", &text);
  add_rows(run_series(), "root", &text);
  return text;
}

// Series of each rank. docs/metrics.md is generated from these rows.

namespace {

using enum SeriesInfo::Kind;
using enum SeriesInfo::Presence;

constexpr SeriesInfo kRankSeries[] = {
    {"lockstep_build_info", kGauge, "1", "version, commit, torch, mpi, nccl", kAlways,
     "Versions of the binary and its libraries; empty where one is not used."},
    {"lockstep_rank_info", kGauge, "1", "rank, local_rank, node", kAlways,
     "Place of this rank in the world."},
    {"lockstep_gpu_info", kGauge, "1", "index, name, id, visible_devices, memory_policy", kLate,
     "The GPU of this rank (GPUs); absent on a CPU."},
    {"lockstep_gpu_memory_bytes", kGauge, "bytes", "", kLate,
     "Memory of this rank's GPU; absent on a CPU."},
    {"lockstep_gpu_memory_limit_bytes", kGauge, "bytes", "", kLate,
     "What tensors may take of it; absent on a CPU."},
    {"lockstep_gpu_memory_allocated_bytes", kGauge, "bytes", "", kLate,
     "In tensors now, as LibTorch's allocator counts them; absent on a CPU."},
    {"lockstep_gpu_memory_reserved_bytes", kGauge, "bytes", "", kLate,
     "Taken from the GPU by the allocator, in use or kept for later; absent on a CPU."},
    {"lockstep_gpu_memory_peak_bytes", kGauge, "bytes", "", kLate,
     "The most that tensors took since the process started; absent on a CPU."},
    {"lockstep_gpu_ooms_total", kCounter, "allocations", "", kLate,
     "Allocations that failed as no memory was left; absent on a CPU."},
    {"lockstep_steps_total", kCounter, "steps", "", kAlways,
     "Optimizer steps done by this process."},
    {"lockstep_samples_total", kCounter, "samples", "", kAlways, "Samples this rank trained on."},
    {"lockstep_last_step_timestamp_seconds", kGauge, "s since 1970", "", kLate,
     "When the last step ended."},
    {"lockstep_skipped_samples_total", kCounter, "samples", "", kAlways,
     "Damaged samples of this rank that others took the place of (data.on_error: skip)."},
    {"lockstep_data_records_total", kCounter, "records", "", kAlways,
     "Records read from files for these samples, mixup's partners too; 0 where samples are made or "
     "kept in memory."},
    {"lockstep_data_read_bytes_total", kCounter, "bytes", "", kAlways,
     "Bytes of these records as they lie in their files."},
    {"lockstep_data_queue_batches", kGauge, "batches", "", kLate,
     "Batches read ahead and ready when the last step had taken its own; absent where "
     "data.loader_threads is 0."},
    {"lockstep_straggler_steps_total", kCounter, "steps", "", kAlways,
     "Steps on which this rank worked (data, forward, backward) more than 30 % longer than the "
     "mean of the others."},
    {"lockstep_nonfinite_steps_total", kCounter, "steps", "", kAlways,
     "Steps whose update was skipped for NaN or Inf; with sync.sync_replicas: false, those that "
     "this rank skipped."},
    {"lockstep_step_duration_seconds", kHistogram, "s", "", kAlways,
     "Duration of a whole step; 13 bounds, 1 ms to 60 s."},
    {"lockstep_step_phase_seconds_total", kCounter, "s", "phase", kAlways,
     "Where steps spend their time: data, forward, backward, allreduce, optimizer, modifier, "
     "other."},
    {"lockstep_allreduce_bytes_total", kCounter, "bytes", "", kAlways,
     "Payload handed to all-reduce."},
    {"lockstep_allreduce_saved_bytes_total", kCounter, "bytes", "", kAlways,
     "Payload that packing and narrower types left out: dense float32 gradients would have added "
     "it."},
    {"lockstep_allreduce_sent_bytes_total", kCounter, "bytes", "", kAlways,
     "What a rank must send at least to reduce its payload: 2 (N - 1) / N of it."},
    {"lockstep_allreduce_duration_seconds", kHistogram, "s", "", kAlways,
     "Duration of the all-reduce of each bucket of gradients; on GPUs of its start alone; 0.1 ms "
     "to "
     "10 s."},
    {"lockstep_allreduce_seconds_total", kCounter, "s", "", kAlways,
     "Inside all-reduces of gradients, hidden behind backward or not."},
    {"lockstep_allreduce_overlapped_seconds_total", kCounter, "s", "", kAlways,
     "The part of them hidden behind backward, or the update."},
    {"lockstep_gather_bytes_total", kCounter, "bytes", "", kAlways,
     "Values all-gathered after updates, of all ranks together (sync.shard_optimizer)."},
    {"lockstep_gather_seconds_total", kCounter, "s", "", kAlways, "Inside these all-gathers."},
    {"lockstep_allreduce_exposed_seconds_total", kCounter, "s", "", kAlways,
     "Waited for all-reduce, not hidden behind backward; a rank that waits less than the others "
     "is the slow one."},
    {"lockstep_agreement_checks_total", kCounter, "checks", "", kAlways,
     "Comparisons of the ranks' whole state."},
    {"lockstep_agreement_seconds_total", kCounter, "s", "", kAlways,
     "Spent comparing the ranks' state."},
    {"lockstep_checkpoint_stall_seconds_total", kCounter, "s", "", kAlways,
     "Training stood still for a save."},
    {"lockstep_checkpoint_written_bytes_total", kCounter, "bytes", "", kAlways,
     "Checkpoint bytes written by this rank."},
    {"lockstep_signals_total", kCounter, "signals", "signal", kAlways,
     "Signals received: SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2."},
    {"lockstep_log_messages_total", kCounter, "lines", "level", kAlways,
     "Lines logged, printed or not: debug, info, warning, error."},
    {"lockstep_log_lost_lines_total", kCounter, "lines", "", kAlways,
     "Lines that stderr or a log file lost: nobody read it, or its disk was full or hung."},
    {"lockstep_http_requests_total", kCounter, "requests", "handler, code", kAlways,
     "Requests answered; handler is a page above, or other."},
    {"lockstep_http_request_duration_seconds", kHistogram, "s", "handler", kAlways,
     "From a request's header to the end of its answer; 1 ms to 1 s; handler: /metrics or "
     "other."},
    {"lockstep_http_rejected_connections_total", kCounter, "connections", "reason", kAlways,
     "Refused or cut: limit (no free place), timeout, header (malformed or too large), body (too "
     "large), credentials (none, wrong ones, or too many tries), tls (no handshake)."},
    {"lockstep_http_missing_ranks", kGauge, "ranks", "", kAlways,
     "Ranks whose page this one shows and which did not answer it in time; metrics.scope node and "
     "run."},
    {"process_start_time_seconds", kGauge, "s since 1970", "", kAlways,
     "When the process started."},
    {"process_cpu_seconds_total", kCounter, "s", "", kAlways, "User and system time used."},
    {"process_resident_memory_bytes", kGauge, "bytes", "", kAlways, "Resident memory."},
    {"process_open_fds", kGauge, "descriptors", "", kAlways, "Open file descriptors."},
    {"process_max_fds", kGauge, "descriptors", "", kAlways,
     "File descriptors the process may open."},
};

}  // namespace

std::span<const SeriesInfo> rank_series() { return kRankSeries; }

// Series of the run, exported by rank 0 only. docs/metrics.md is generated from these rows.

namespace {

using enum SeriesInfo::Kind;
using enum SeriesInfo::Presence;

constexpr SeriesInfo kRunSeries[] = {
    {"lockstep_run_info", kGauge, "1", "run, model, launcher, config_sha", kAlways,
     "Facts of the run."},
    {"lockstep_run_state", kGauge, "0 or 1", "state", kAlways,
     "1 for one of initializing, restoring, training, validating, saving, draining, paused, "
     "finished, "
     "failed."},
    {"lockstep_run_start_timestamp_seconds", kGauge, "s since 1970", "", kAlways,
     "When this process began the run; a server of jobs itself began earlier."},
    {"lockstep_world_ranks", kGauge, "ranks", "", kAlways, "Ranks of the world."},
    {"lockstep_restarts", kGauge, "starts", "", kAlways,
     "Times the run was started before; absent if the launcher does not tell."},
    {"lockstep_step", kGauge, "steps", "", kAlways, "Global step."},
    {"lockstep_epoch", kGauge, "epochs", "", kAlways, "Epochs done, with fraction."},
    {"lockstep_epochs_planned", kGauge, "epochs", "", kAlways, "Epochs of the whole run."},
    {"lockstep_train_loss", kGauge, "-", "", kLate, "Training loss, mean over ranks, last logged."},
    {"lockstep_gradient_norm", kGauge, "-", "", kLate,
     "Length of the last update's mean gradient, before clipping; only with "
     "optimizer.clip_norm."},
    {"lockstep_loss_scale", kGauge, "-", "", kLate,
     "What the last step's losses were multiplied by; only with train.precision: fp16."},
    {"lockstep_learning_rate", kGauge, "-", "group", kLate,
     "Learning rate of the last step; group: weights, other."},
    {"lockstep_weight_decay", kGauge, "-", "group", kLate, "Weight decay of the last step."},
    {"lockstep_validation_loss", kGauge, "-", "", kLate, "Loss of the last validation."},
    {"lockstep_validation_accuracy_ratio", kGauge, "0 to 1", "", kLate,
     "Top-1 accuracy of the last validation."},
    {"lockstep_validation_metric", kGauge, "the metric's", "metric", kLate,
     "What a metric of eval.metrics gave in the last validation: top_5, perplexity."},
    {"lockstep_validation_class_metric", kGauge, "the metric's", "metric, class", kLate,
     "The same of one class (precision, recall), where there are at most 100; at most 200 series."},
    {"lockstep_kpi", kGauge, "the KPI's", "kpi, mode", kLate,
     "What a KPI of callbacks gave last; mode: train, eval; at most 50 series."},
    {"lockstep_sparsity_ratio", kGauge, "0 to 1", "", kAlways, "Pruned / prunable parameters."},
    {"lockstep_target_sparsity_ratio", kGauge, "0 to 1", "modifier", kLate,
     "Sparsity the schedule asks for now."},
    {"lockstep_parameters", kGauge, "parameters", "", kAlways, "Parameters of the model."},
    {"lockstep_prunable_parameters", kGauge, "parameters", "", kAlways,
     "Parameters that a recipe could prune: weights of linear layers and convolutions."},
    {"lockstep_trainable_parameters", kGauge, "parameters", "", kAlways,
     "Parameters that updates change."},
    {"lockstep_layer_sparsity_ratio", kGauge, "0 to 1", "param", kLate,
     "Pruned / all weights of one parameter, where log_types of a pruning modifier or "
     "summary.per_layer asks for it; the first 200 parameters."},
    {"lockstep_mask_updates_total", kCounter, "masks", "", kAlways, "Masks computed."},
    {"lockstep_revived_weights_total", kCounter, "weights", "", kAlways,
     "Pruned weights that were found not to be zero; must stay 0."},
    {"lockstep_quantized_layers", kGauge, "layers", "", kAlways,
     "Layers that train with fake quantization."},
    {"lockstep_pruned_parameters", kGauge, "parameters", "", kAlways,
     "Parameters that a mask holds at zero."},
    {"lockstep_modifier_updates_total", kCounter, "updates", "modifier", kAlways,
     "Masks or rates a modifier has set."},
    {"lockstep_validations_skipped_total", kCounter, "saves", "", kAlways,
     "Saves that were not validated: eval.eval_throttle_secs had not passed since the last "
     "validation."},
    {"lockstep_exports_total", kCounter, "models", "", kAlways,
     "Models that were to be published under saved_models."},
    {"lockstep_export_failures_total", kCounter, "models", "", kAlways,
     "Models that could not be published."},
    {"lockstep_checkpoint_saves_total", kCounter, "saves", "", kAlways, "Saves attempted."},
    {"lockstep_checkpoint_save_failures_total", kCounter, "saves", "", kAlways,
     "Saves that were not committed."},
    {"lockstep_checkpoint_save_duration_seconds", kHistogram, "s", "", kAlways,
     "Committed saves, from start to commit; 0.1 s to 30 min."},
    {"lockstep_checkpoint_interval_seconds", kGauge, "s", "", kLate,
     "Seconds expected from one commit to the next."},
    {"lockstep_checkpoint_interval_steps", kGauge, "steps", "", kLate,
     "Steps expected from one commit to the next, where saves go by steps."},
    {"lockstep_checkpoint_last_success_timestamp_seconds", kGauge, "s since 1970", "", kLate,
     "When the last save was committed."},
    {"lockstep_checkpoint_last_step", kGauge, "steps", "", kLate,
     "Step of the last committed save, or of the one restored."},
    {"lockstep_checkpoint_free_bytes", kGauge, "bytes", "", kLate,
     "Free space in the checkpoint folder."},
    {"lockstep_checkpoint_restores_total", kCounter, "restores", "", kAlways,
     "Restores from a save."},
    {"lockstep_checkpoint_damaged_saves_total", kCounter, "saves", "", kAlways,
     "Saves that were passed over as damaged when a run went on."},
    {"lockstep_checkpoint_restore_duration_seconds", kGauge, "s", "", kLate,
     "Duration of the last restore."},
    {"lockstep_tensorboard_write_errors_total", kCounter, "writes", "", kAlways,
     "Failed writes of the event files, and points left out as too much waited; all are lost."},
};

}  // namespace

std::span<const SeriesInfo> run_series() { return kRunSeries; }

}  // namespace lockstep::metrics
