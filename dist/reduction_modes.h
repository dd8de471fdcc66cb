#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "base/tensors/state_list.h"
#include "base/yaml/config_reader.h"

namespace lockstep {
class DevicePacking;
}  // namespace lockstep

namespace lockstep::dist {

class Communicator;

/// Bucket size on GPUs, DDP's default. A message costs a launch there, and a buffer several kernels
/// per step.
inline constexpr int64_t kGpuBucketBytes = 26214400;

/// Bucket bytes for each member of the exchange between hosts. With small buckets the first leaves
/// early, and the network idles less between them. But each member sends its share of a bucket as a
/// separate message, and latency dominates short messages (bench/results/tried.md).
inline constexpr int64_t kBucketBytesAMember = 524288;

/// Section `sync` of the run file: how ranks exchange gradients.
struct SyncOptions {
  int64_t bucket_bytes = 4194304;   ///< gradients per bucket, in bytes; > 0
  bool bucket_bytes_given = false;  ///< false: fit_bucket_bytes() may choose another size
  /// Overlap of buckets with backward: true, false, auto (the faster one, measured).
  std::string overlap = "auto";
  /// Sending only kept gradients: always, never, auto (the faster one, measured for each bucket).
  std::string sparse_allreduce = "auto";
  std::string comm_dtype = "fp32";  ///< number format in messages: fp32 (as they are), bf16
  bool shard_optimizer = false;     ///< ZeRO-1: each rank keeps a shard of the optimizer's state
  /// One copy of the weights for all ranks of a host: on, off, auto (where possible and useful).
  std::string share_weights = "auto";
  bool sync_replicas = true;       ///< false: local steps (train/step/step_modes.h)
  int64_t sync_every = 8;          ///< local steps between two averages over the ranks
  bool shared_window = true;       ///< ranks of one host exchange through shared memory
  double timeout_s = 300;          ///< longest wait for a peer inside a collective
  double slow_after_s = 60;        ///< seconds; longer waits are logged; key of section `watchdog`
  bool check_collectives = false;  ///< ranks compare each call before they make it
  int64_t replica_check_every = 500;  ///< steps between comparisons of the ranks' state; 0: never
};

/// Hardware and ranks that exchange the gradients. Equal on all ranks.
struct BucketPlace {
  bool on_gpu = false;
  int num_hosts = 1, num_ranks = 1;
  bool prunes = false;  ///< masks may leave few gradients
};

/// Chooses bucket_bytes if the run file leaves it open. On GPUs: kGpuBucketBytes. On CPUs of
/// several hosts: kBucketBytesAMember for each host, or for each rank if ranks of a host share no
/// window, up to the default. That applies only if gradients travel dense at every step and may
/// overlap with backward.
void fit_bucket_bytes(const BucketPlace& place, SyncOptions* sync);

/// Reads the section. Faults go to the diagnostics of `in`.
SyncOptions read_sync_options(ConfigReader in);

/// Two settings of section `sync` that exclude each other.
struct SyncConflict {
  const char* setting;  ///< "sync.share_weights: on"
  const char* other;    ///< "sync.comm_dtype"
  const char* why;      ///< reason and way out
};

/// Returns the conflicts of these options that no device supports. The reader of the run file
/// refuses them.
std::vector<SyncConflict> conflicts_of(const SyncOptions& options);

/// Messages about combinations that GPUs do not support; null if they do. The reader of the run
/// file refuses these with `run.device: cuda`, require_supported() on every GPU.
const char* refusal_of_packing_on_gpu(const SyncOptions& options);
const char* refusal_of_overlap_on_gpu(const SyncOptions& options);

/// Throws Error(kConfig) for a combination that the device of `comm` does not support. Returns the
/// kernels that pack gradients on a device; null if the CPU packs them or nothing is packed.
std::shared_ptr<const DevicePacking> require_supported(Communicator& comm,
                                                       const SyncOptions& options);

/// Collective that turns the gradients of all ranks into means.
enum class ReductionKind : uint8_t {
  kAllReduce,      ///< every rank gets all means
  kReduceScatter,  ///< each rank gets the means of its shards (sync.shard_optimizer)
  kShared          ///< the same without messages: ranks map all gradients (sync.share_weights)
};

/// Facts that select the modes; fixed while the buffers stay. Equal on all ranks.
struct ReductionFacts {
  int world_size = 1;
  bool is_asynchronous = false;  ///< Communicator::is_asynchronous(): on GPUs
  bool packs_on_gpu = false;     ///< kernels of the device pack the gradients
  bool are_shared = false;       ///< the ranks map all gradients (FlatBuffer::grads_by_rank)
  bool are_cpu_floats = false;   ///< all gradients are float32 on the CPU
  size_t num_buckets = 0;
  int64_t dense_bytes = 0;  ///< of all gradients of this rank
};

/// Modes of the reduction that exist. All other combinations are refused (conflicts_of(),
/// require_supported()). N = ranks; a dash means that nothing travels.
///
///                        kAllReduce          kReduceScatter    kShared
///   device               CPU, GPU            CPU, GPU          CPUs of one host
///   N                    any                 > 1               > 1
///   wire (rounds)        fp32, bf16          fp32, bf16        -
///   packed, CPU          never auto always   never auto always -
///   packed, GPU          never always (1)    never             -
///   overlap, CPU         false auto true     false auto true   -
///   overlap, GPU         fp32, dense (2)     false             -
///   packs_concurrently   CPU                 no                -
///   may_be_late          CPU, fp32, N > 1    no                -
///   updates_early        GPU                 no                no
///
/// (1) not with overlap; `auto` packs nothing on GPUs.  (2) `true` is refused in other cases.
/// All modes with one wire give the same bits, packed and overlapped or not.
///
/// Three further conditions change from step to step. They are in GradientReducer:
/// overlaps_now() adds the measurement, stats_come_first() the step's requests, and
/// may_update_early() the step's totals.
struct ReductionModes {
  ReductionKind kind = ReductionKind::kAllReduce;
  /// Narrower type in messages; nullopt: gradients travel as they are. One rank rounds nothing.
  std::optional<at::ScalarType> wire;
  /// Buckets may overlap with backward, at least in some steps.
  bool may_overlap = false;
  /// Overlap is tried, and kept if it is faster (`auto`).
  bool measures_overlap = false;
  /// One thread may pack buckets while another one sends earlier ones: each has its own memory.
  bool packs_concurrently = false;
  /// Means may be used bucket by bucket, and a bound of them is known before they travel.
  bool may_be_late = false;
  /// Means and their check may be enqueued before the host knows the step's totals.
  bool updates_early = false;

  bool is_sharded() const { return kind != ReductionKind::kAllReduce; }
};

ReductionKind reduction_kind(const SyncOptions& options, int world_size, bool are_shared);
ReductionModes reduction_modes(const SyncOptions& options, const ReductionFacts& facts);

/// Seconds of one item (a bucket, or a whole step) in one step on this rank.
struct ItemSeconds {
  double alone_s = 0;     ///< this rank's own work
  double together_s = 0;  ///< inside collectives, including the wait for later ranks
};

/// Decides by measurement which of two ways is faster, for each of several items. Steps use the
/// first and the second way alternately, kRounds times each, after one uncounted step of each. Then
/// the ranks agree on one result.
///
/// The time of an item in a step is the largest alone_s of the ranks plus the smallest together_s:
/// that of the last rank to enter, which waits for no other. Each way is judged by its median over
/// the rounds; the first way wins a tie.
class Autotuner {
 public:
  static constexpr int kRounds = 5;

  /// Starts a new trial and discards all measurements. num_items = 0: nothing to measure.
  void start(size_t num_items);
  bool is_running() const { return num_items_ > 0; }
  /// True if the current step must use the second way.
  bool times_second_way() const { return is_running() && num_steps_ % 2 == 1; }

  /// Records the step's times, by item. After the last step the trial ends. The result says for
  /// each item whether the second way is faster; it is equal on all ranks. That last call is
  /// collective (one all_reduce), so all ranks make the same calls.
  std::optional<std::vector<bool>> add_step(const std::vector<ItemSeconds>& items,
                                            Communicator& comm);

 private:
  std::vector<bool> verdict(Communicator& comm);

  size_t num_items_ = 0;
  int num_steps_ = 0;
  std::vector<double> steps_;  ///< -alone_s and together_s of each item, step by step
};

/// Choice of the buckets that travel packed (dist/reducer/bucket_reduction.h). Equal on all ranks.
///
/// `auto` measures both ways for each bucket after each change of masks and keeps the faster one.
/// The result is part of the checkpoint, with its fingerprint. A resumed run with the same
/// fingerprint repeats the choice without measuring. An unfinished trial starts again.
class PackingChoice {
 public:
  /// mode: auto, always, never.
  explicit PackingChoice(std::string mode);

  /// Adopts new masks or buckets. can_pack: by bucket. fingerprint: digest of all that the times
  /// depend on (masks, buckets, ranks, wire type).
  void follow(std::vector<bool> can_pack, uint64_t fingerprint);
  /// True if this bucket travels packed in the current step.
  bool packs(size_t bucket) const;
  bool is_measuring() const { return autotuner_.is_running(); }

  /// Records the step's times, by bucket. Collective at the end of a trial. True if the choice may
  /// have changed.
  bool add_step(const std::vector<ItemSeconds>& buckets, Communicator& comm);

  /// Checkpoint state `_lockstep/sync/packed`: live text, "<digest> <0 or 1 for each bucket>".
  /// Empty before a result, and if a checkpoint has none.
  StateList state();

 private:
  bool adopt_stored();

  const std::string mode_;
  std::vector<bool> can_pack_, chosen_;
  uint64_t fingerprint_ = 0;
  Autotuner autotuner_;
  std::string stored_;
};

}  // namespace lockstep::dist
