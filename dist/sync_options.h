#pragma once

#include <cstdint>
#include <string>

#include "base/yaml/config_reader.h"

namespace lockstep::dist {

/// As DDP has it: a message costs a launch there, and a buffer several kernels a step.
inline constexpr int64_t kGpuBucketBytes = 26214400;

/// Of a bucket, for each that takes part in the exchange between hosts. Small buckets leave early,
/// and the wire rests less between them; but each member sends its share of one in a message of its
/// own, whose latency counts when it is short (docs/results/tried.md).
inline constexpr int64_t kBucketBytesAMember = 524288;

/// Section `sync` of the run file: how ranks exchange gradients.
struct SyncOptions {
  int64_t bucket_bytes = 4194304;   ///< of gradients that travel together; > 0
  bool bucket_bytes_given = false;  ///< false: fit_bucket_bytes() may choose another size
  /// Whether buckets travel while backward goes on: true, false, auto (what was measured faster).
  std::string overlap = "auto";
  /// Whether only kept gradients travel: always, never, auto (what was measured faster, by bucket).
  std::string sparse_allreduce = "auto";
  std::string comm_dtype = "fp32";  ///< number format in messages: fp32 (as they are), bf16
  bool shard_optimizer = false;     ///< each rank keeps a share of the optimizer's state
  /// Whether ranks of one host have one copy of the weights: on, off, auto (where it can be and
  /// pays).
  std::string share_weights = "auto";
  bool sync_replicas = true;          ///< false: local steps (train/sync/local_steps.h)
  int64_t sync_every = 8;             ///< of them from one mean of the ranks to the next
  bool shared_window = true;          ///< ranks of one host exchange through shared memory
  double timeout_s = 300;             ///< longest wait for a peer inside a collective
  double slow_after_s = 60;           ///< longer ones are logged; of section `watchdog`
  bool check_collectives = false;     ///< ranks compare each call before they make it
  int64_t replica_check_every = 500;  ///< steps between comparisons of the ranks' state; 0: never
};

/// Where gradients travel. Equal on all ranks.
struct BucketPlace {
  bool on_gpu = false;
  int num_hosts = 1, num_ranks = 1;
  bool prunes = false;  ///< masks may leave few gradients
};

/// Gives bucket_bytes, where the run file leaves it open, the size that suits: kGpuBucketBytes on
/// GPUs; on CPUs on several hosts kBucketBytesAMember for each of these (for each rank where ranks
/// of a host share no window), up to the default, where gradients travel whole at every step and
/// may do so beside backward.
void fit_bucket_bytes(const BucketPlace& place, SyncOptions* sync);

/// Reads the section; faults go where `in` sends them.
SyncOptions read_sync_options(ConfigReader in);

}  // namespace lockstep::dist
