#include "metrics/table/series_table.h"

// Series of each rank. docs/metrics.md is generated from these rows.
namespace lockstep::metrics {

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

}  // namespace lockstep::metrics
