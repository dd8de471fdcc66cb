#pragma once

#include <cstdint>
#include <string>

#include "base/yaml/config_reader.h"

namespace lockstep::dist {

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

}  // namespace lockstep::dist
