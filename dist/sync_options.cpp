// Reader of section `sync`, and the choice of the bucket size for this hardware.
#include "dist/sync_options.h"

#include <algorithm>

namespace lockstep::dist {

void fit_bucket_bytes(const BucketPlace& place, SyncOptions* sync) {
  if (sync->bucket_bytes_given) return;
  // Packed gradients are smaller, and a small bucket of few kept elements would be all latency.
  const bool packs = place.prunes && sync->sparse_allreduce != "never";
  // With a window, only one rank of each host sends to other hosts.
  const int num_members = sync->shared_window ? place.num_hosts : place.num_ranks;
  if (place.on_gpu)
    sync->bucket_bytes = kGpuBucketBytes;
  else if (place.num_hosts > 1 && !packs && !sync->shard_optimizer && sync->sync_replicas &&
           sync->overlap != "false")
    sync->bucket_bytes = std::min(sync->bucket_bytes, num_members * kBucketBytesAMember);
}

SyncOptions read_sync_options(ConfigReader in) {
  SyncOptions options;
  options.bucket_bytes_given =
      in.read("bucket_bytes", &options.bucket_bytes, at_least(1),
              "gradient bytes per message; default 26214400 on GPUs; on several CPU hosts 524288 "
              "per host, at most 4194304, for dense, overlapped, unsharded, synchronous gradients");
  in.read_choice(
      "overlap", &options.overlap, {"true", "false", "auto"},
      "send gradients during backward; auto: if faster; on GPUs true needs comm_dtype fp32 and "
      "an unsharded optimizer, auto also dense gradients");
  in.read_choice(
      "sparse_allreduce", &options.sparse_allreduce, {"auto", "always", "never"},
      "send only gradients of kept weights; auto: per bucket if faster, never on GPUs; always on "
      "GPUs: unsharded optimizer, no overlap: true, no local steps");
  in.read_choice("comm_dtype", &options.comm_dtype, {"fp32", "bf16"},
                 "number format of gradient messages; bf16: sums still in fp32");
  in.read("shard_optimizer", &options.shard_optimizer,
          "shard the optimizer state over the ranks (ZeRO-1)");
  in.read_choice(
      "share_weights", &options.share_weights, {"auto", "on", "off"},
      "one copy of the weights for all ranks of a host, each updating a part (CPUs, one host); "
      "auto: if possible and the weights are large");
  in.read("sync_replicas", &options.sync_replicas,
          "synchronous steps; false: local steps, with weights averaged every sync_every steps");
  const bool has_every = in.read("sync_every", &options.sync_every, count_from(1),
                                 "sync_replicas: false: steps between averages of the weights");
  // A key without effect is an error, so that a typing mistake in another key is not overlooked.
  if (has_every && options.sync_replicas && !in.lists_fields())
    in.fault("sync_every",
             "'sync.sync_every' has no effect while ranks exchange gradients at every step: set "
             "sync.sync_replicas to false, or remove it");
  in.read("shared_window", &options.shared_window,
          "exchange of ranks on one host through shared memory");
  in.read("timeout_s", &options.timeout_s, between(1, 1e6),
          "longest wait for other ranks in a collective, in seconds, their saves and evaluations "
          "included");
  in.read("check_collectives", &options.check_collectives,
          "debugging: compare each gradient collective across ranks first, to name a rank that "
          "diverges, hangs or is lost, also on GPUs; one extra message each");
  in.read("replica_check_every", &options.replica_check_every, between(0, 1e9),
          "steps between comparisons of the whole state across ranks; 0: only at saves and loads");
  in.done();
  return options;
}

}  // namespace lockstep::dist
