#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

/// Plain numbers that a trainer hands over. This module knows nothing of trainers, tensors or ranks
/// beyond them.
namespace lockstep::metrics {

/// What does not change while a process runs.
struct RunFacts {
  std::string version, commit;                           ///< of Lockstep
  std::string torch_version, mpi_version, nccl_version;  ///< empty: not used
  std::string run_name, model, launcher, config_sha;
  int rank = 0;
  int local_rank = 0;
  std::string node;  ///< host name, or the scheduler's name of the node
  int world_size = 1;
  bool is_root = true;  ///< this rank also serves the run's own series
  std::vector<std::string>
      modifiers;  ///< one distinct name each; later calls give an index into this list
  std::vector<std::string> param_groups;
  std::optional<int64_t> restarts;  ///< times this run was started before, if the launcher tells
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
/// "initializing", "restoring", ...
const char* state_name(RunState state);

/// Where the seconds of one step went on this rank.
struct PhaseSeconds {
  double data = 0, forward = 0, backward = 0, allreduce = 0, optimizer = 0, modifier = 0, other = 0;

  double sum() const {
    return data + forward + backward + allreduce + optimizer + modifier + other;
  }
};

/// One optimizer update, seen from one rank. Seconds are of a steady clock.
struct StepSample {
  int64_t step = 0;                 ///< updates done, this one included
  double epoch = 0;                 ///< 2.5 = half of the third epoch is done
  int64_t num_samples = 0;          ///< trained on by this rank in this step
  int64_t num_skipped_samples = 0;  ///< damaged, of this rank: others took their places
  int64_t num_records = 0;          ///< read from files for these samples
  int64_t num_record_bytes = 0;     ///< of them, as they lie in the files
  std::optional<double> num_queued_batches = {};  ///< read ahead and ready; absent without threads
  double duration_s = 0;
  PhaseSeconds phases;
  int64_t bytes_reduced = 0;  ///< payload this rank handed to all-reduce
  int64_t bytes_saved = 0;    ///< that packing and narrower types left out of it
  int64_t bytes_sent = 0;     ///< least that this rank must send for it
  double allreduce_s = 0;     ///< inside all-reduces, hidden or not
  /// Its parts, by bucket; what they lie in must live while the sample is recorded.
  std::span<const double> allreduce_s_by_bucket = {};
  double allreduce_overlapped_s = 0;  ///< the part of it hidden behind backward, or the update
  int64_t bytes_gathered = 0;         ///< values all-gathered, where the optimizer is divided
  double gather_s = 0;                ///< inside these all-gathers
  double allreduce_exposed_s = 0;     ///< waited for all-reduce, not hidden behind backward
  bool is_straggler = false;          ///< this rank worked 30 % longer than the others' mean
  bool nonfinite = false;             ///< the update was skipped for NaN or Inf
  std::optional<double> loss;  ///< mean over ranks; absent where it was not read from the device
  std::optional<double> gradient_norm;  ///< before clipping; absent where nothing is clipped by it
  std::optional<double> loss_scale;     ///< absent where losses are not scaled
};

struct SaveSample {
  int64_t step = 0;
  bool committed = true;
  double duration_s = 0;              ///< start to commit
  double stall_s = 0;                 ///< training on this rank stood still
  int64_t written_bytes = 0;          ///< by this rank
  std::optional<int64_t> free_bytes;  ///< left in the folder afterwards
};

struct RestoreSample {
  int64_t step = 0;
  double duration_s = 0;
  int64_t num_damaged_saves = 0;  ///< newer ones that were passed over
};

/// A number that a metric of evaluations gives: of all samples, or of those of one class.
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

}  // namespace lockstep::metrics
