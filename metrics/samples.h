#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

/// Plain numbers that the trainer passes to the metrics. This module does not depend on trainers or
/// tensors.
namespace lockstep::metrics {

/// Spare processes, and the ranks whose places they have taken so far.
struct SpareFacts {
  int num_left = 0;
  int num_ended = 0, num_hung = 0;  ///< lost ranks, by cause
};

/// Facts that do not change while a run trains.
struct RunFacts {
  std::string version, commit;                           ///< of Lockstep
  std::string torch_version, mpi_version, nccl_version;  ///< empty: not used
  std::string run_name, model, launcher, config_sha;
  int rank = 0;
  int local_rank = 0;
  std::string node;  ///< host name, or the scheduler's name for the node
  int world_size = 1;
  bool is_root = true;                 ///< this rank also exports the run's series
  std::vector<std::string> modifiers;  ///< distinct names; later calls use indexes into this list
  std::vector<std::string> param_groups;
  std::optional<int64_t> restarts;  ///< earlier starts of this run, if the launcher provides them
  std::optional<SpareFacts> spares = {};  ///< set if the world began with some
};

enum class RunState {
  kInitializing,
  kRestoring,
  kTraining,
  kValidating,
  kSaving,
  kDraining,
  kPaused,
  kFinished,
  kFailed,
};
inline constexpr int kNumRunStates = 9;
/// Returns "initializing", "restoring", ...
const char* state_name(RunState state);

/// Seconds of one step on this rank, by phase.
struct PhaseSeconds {
  double data = 0, forward = 0, backward = 0, allreduce = 0, optimizer = 0, modifier = 0, other = 0;

  double sum() const {
    return data + forward + backward + allreduce + optimizer + modifier + other;
  }
};

/// One optimizer update, seen from one rank. Seconds of a steady clock.
struct StepSample {
  int64_t step = 0;                               ///< updates done, including this one
  double epoch = 0;                               ///< 2.5: half of the third epoch is done
  int64_t num_samples = 0;                        ///< trained on by this rank in this step
  int64_t num_skipped_samples = 0;                ///< damaged ones of this rank, replaced by others
  int64_t num_records = 0;                        ///< read from files for these samples
  int64_t num_record_bytes = 0;                   ///< of these records, as stored
  std::optional<double> num_queued_batches = {};  ///< ready; absent without threads
  double duration_s = 0;
  PhaseSeconds phases;
  int64_t bytes_reduced = 0;  ///< payload of this rank's all-reduces
  int64_t bytes_saved = 0;    ///< payload avoided by packing and narrower types
  int64_t bytes_sent = 0;     ///< minimum that this rank must send for them
  double allreduce_s = 0;     ///< in all-reduces, overlapped or not
  /// Parts of allreduce_s by bucket. The memory must stay valid while the sample is recorded.
  std::span<const double> allreduce_s_by_bucket = {};
  double allreduce_overlapped_s = 0;  ///< of allreduce_s: overlapped with backward or update
  int64_t bytes_gathered = 0;         ///< values all-gathered with a sharded optimizer
  double gather_s = 0;                ///< in these all-gathers
  double allreduce_exposed_s = 0;     ///< time waiting for all-reduce, not overlapped with backward
  bool is_straggler = false;          ///< this rank worked 30 % longer than the others' mean
  bool nonfinite = false;             ///< the update was skipped because of NaN or Inf
  std::optional<double> loss;  ///< mean over ranks; absent if it was not read from the device
  std::optional<double> gradient_norm;  ///< before clipping; absent if nothing is clipped by it
  std::optional<double> loss_scale;     ///< absent if losses are not scaled
};

struct SaveSample {
  int64_t step = 0;
  bool committed = true;
  double duration_s = 0;              ///< from start to commit
  double stall_s = 0;                 ///< time that training on this rank was blocked
  int64_t written_bytes = 0;          ///< by this rank
  std::optional<int64_t> free_bytes;  ///< left on the folder's file system afterwards
};

struct RestoreSample {
  int64_t step = 0;
  double duration_s = 0;
  int64_t num_damaged_saves = 0;  ///< newer damaged checkpoints that were skipped
};

/// Value of an evaluation metric: of all samples, or of those of one class.
struct ValidationValue {
  std::string name;
  std::optional<int64_t> class_number;
  double value = 0;
};

struct ValidationSample {
  double loss = 0;
  std::optional<double> accuracy;  ///< top-1, 0 to 1
  std::vector<ValidationValue> values = {};
};

/// Returns the seconds since 1970, for *_timestamp_seconds and events.
inline double unix_time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace lockstep::metrics
