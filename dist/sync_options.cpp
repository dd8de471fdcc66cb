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
              "bytes of gradients that travel in one message; the default is 26214400 on GPUs, and "
              "on several hosts of CPUs half a MiB for each, up to 4, unless a recipe prunes, "
              "overlap is false, the optimizer is divided or steps are local");
  in.read_choice(
      "overlap", &options.overlap, {"true", "false", "auto"},
      "whether gradients travel while backward goes on; auto: where that is faster (on GPUs only "
      "with comm_dtype fp32, a whole optimizer and no packing, of which true needs the first two)");
  in.read_choice(
      "sparse_allreduce", &options.sparse_allreduce, {"auto", "always", "never"},
      "whether only the gradients of kept weights travel; auto: where that is faster, by bucket "
      "(never "
      "on GPUs, where always needs a whole optimizer and neither overlap: true nor local steps)");
  in.read_choice("comm_dtype", &options.comm_dtype, {"fp32", "bf16"},
                 "number format of gradients in messages; bf16: rounded to it, added in fp32");
  in.read("shard_optimizer", &options.shard_optimizer,
          "each rank keeps only a share of the optimizer's state");
  in.read_choice(
      "share_weights", &options.share_weights, {"auto", "on", "off"},
      "whether the ranks of a host compute with one copy of the weights, of which each updates a "
      "part (on CPUs, all ranks on one host); auto: where it can be and the weights are large");
  in.read("sync_replicas", &options.sync_replicas,
          "ranks exchange gradients at every step; false: each rank makes steps of its own, and "
          "ranks take the mean of their weights every sync_every steps");
  const bool has_every =
      in.read("sync_every", &options.sync_every, count_from(1),
              "sync_replicas: false: steps from one mean of the ranks' weights to the next");
  // A key without effect is an error, so that a typing mistake in another key is not overlooked.
  if (has_every && options.sync_replicas && !in.lists_fields())
    in.fault("sync_every",
             "'sync.sync_every' has no effect while ranks exchange gradients at every step: set "
             "sync.sync_replicas to false, or remove it");
  in.read("shared_window", &options.shared_window,
          "ranks of one host exchange through shared memory, where it has the space; false: by "
          "messages");
  in.read("timeout_s", &options.timeout_s, between(1, 1e6),
          "seconds that a rank waits for its peers inside a collective, saves and evaluations of "
          "other ranks included, before the run ends");
  in.read("check_collectives", &options.check_collectives,
          "for a search: ranks compare each exchange of gradients before they begin it, so that a "
          "rank that makes another one, hangs or is lost is named on GPUs too; a message each");
  in.read("replica_check_every", &options.replica_check_every, between(0, 1e9),
          "steps from one comparison of the ranks' whole state to the next (also made at each save "
          "and load); 0: only there");
  in.done();
  return options;
}

}  // namespace lockstep::dist
