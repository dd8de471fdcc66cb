// From the run file to one mode: reader of section `sync`, bucket size, refusals, the modes that
// follow, and the choices that are measured.
#include "dist/reduction_modes.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/tensors/device_backend.h"
#include "dist/communicator.h"

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
          "steps between comparisons of the whole state across ranks; 0: only at starts, saves and "
          "loads");
  in.done();
  return options;
}

std::vector<SyncConflict> conflicts_of(const SyncOptions& options) {
  constexpr const char* kLocal = "sync.sync_replicas: false";
  constexpr const char* kShared = "sync.share_weights: on";
  const bool is_local = !options.sync_replicas, is_shared = options.share_weights == "on";
  const bool rounds = options.comm_dtype != "fp32";
  const std::array<std::pair<bool, SyncConflict>, 5> rows{{
      {is_local && options.shard_optimizer,
       {kLocal, "sync.shard_optimizer",
        "a rank that updates alone needs the whole optimizer; set it to false"}},
      {is_local && rounds,
       {kLocal, "sync.comm_dtype",
        "gradients are not sent, and means of weights are not rounded; use fp32"}},
      {is_shared && is_local,
       {kShared, kLocal, "each rank trains its own weights; set it to true"}},
      {is_shared && !options.shared_window,
       {kShared, "sync.shared_window: false", "the weights are in such memory; set it to true"}},
      {is_shared && rounds,
       {kShared, "sync.comm_dtype", "no gradients are sent that could be rounded; use fp32"}},
  }};
  std::vector<SyncConflict> conflicts;
  for (const auto& [is_there, conflict] : rows)
    if (is_there) conflicts.push_back(conflict);
  return conflicts;
}

constexpr const char* kPackingOnGpu =
    "sync.sparse_allreduce: always on GPUs needs unsharded gradients that are sent after the "
    "backward pass: with sync.shard_optimizer, sync.overlap: true or local steps use auto or never";
constexpr const char* kOverlapOnGpu =
    "sync.overlap: true on GPUs needs unsharded gradients in fp32: with sync.shard_optimizer or "
    "another sync.comm_dtype than fp32 use auto or false";

const char* refusal_of_packing_on_gpu(const SyncOptions& options) {
  const bool is_wanted = options.sparse_allreduce == "always";
  const bool is_whole_after_backward = !options.shard_optimizer && options.overlap != "true";
  return is_wanted && !is_whole_after_backward ? kPackingOnGpu : nullptr;
}

const char* refusal_of_overlap_on_gpu(const SyncOptions& options) {
  // Only gradients that travel in place can start at a mark of backward's stream.
  const bool is_in_place = !options.shard_optimizer && options.comm_dtype == "fp32";
  return options.overlap == "true" && !is_in_place ? kOverlapOnGpu : nullptr;
}

std::shared_ptr<const DevicePacking> require_supported(Communicator& comm,
                                                       const SyncOptions& options) {
  std::shared_ptr<const DevicePacking> kernels;
  if (options.sparse_allreduce == "always" && !comm.device().is_cpu()) {
    if (refusal_of_packing_on_gpu(options) == nullptr) kernels = comm.make_packing();
    if (kernels == nullptr) throw Error(ExitCode::kConfig, "dist", kPackingOnGpu);
  }
  const bool is_on_gpu = comm.is_asynchronous() || !comm.device().is_cpu();
  const char* const refusal = is_on_gpu ? refusal_of_overlap_on_gpu(options) : nullptr;
  if (refusal != nullptr) throw Error(ExitCode::kConfig, "dist", refusal);
  return kernels;
}

/// Least total bytes for `auto`. Below this, waking a thread costs more than overlap can hide.
constexpr int64_t kLeastOverlapBytes = 1 << 20;

ReductionKind reduction_kind(const SyncOptions& options, int world_size, bool are_shared) {
  if (world_size == 1) return ReductionKind::kAllReduce;
  if (are_shared) return ReductionKind::kShared;
  return options.shard_optimizer ? ReductionKind::kReduceScatter : ReductionKind::kAllReduce;
}

ReductionModes reduction_modes(const SyncOptions& options, const ReductionFacts& facts) {
  ReductionModes modes{.kind = reduction_kind(options, facts.world_size, facts.are_shared)};
  const bool is_whole = !modes.is_sharded();
  if (facts.world_size > 1 && options.comm_dtype != "fp32") {
    check(options.comm_dtype == "bf16", "wire: fp32 or bf16");
    check(modes.kind != ReductionKind::kShared, "shared gradients are not rounded");
    modes.wire = at::kBFloat16;
  }
  const bool travels_in_place = is_whole && !modes.wire && !facts.packs_on_gpu;
  const bool may_pay =
      facts.world_size > 1 && facts.num_buckets > 1 && facts.dense_bytes >= kLeastOverlapBytes;
  modes.may_overlap = options.overlap != "false" && modes.kind != ReductionKind::kShared &&
                      (travels_in_place || !facts.is_asynchronous) &&
                      (options.overlap == "true" || may_pay);
  modes.measures_overlap = modes.may_overlap && options.overlap == "auto";
  modes.packs_concurrently = is_whole && !facts.is_asynchronous;
  modes.may_be_late =
      facts.world_size > 1 && modes.packs_concurrently && !modes.wire && facts.are_cpu_floats;
  modes.updates_early = is_whole && facts.is_asynchronous;
  return modes;
}

// One uncounted step of each way: the first use of a way allocates memory.
constexpr int kWarmSteps = 2;

static double median(std::array<double, Autotuner::kRounds> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Two ways in alternate steps, so that drift of the machine affects both alike.

void Autotuner::start(size_t num_items) {
  num_items_ = num_items;
  num_steps_ = 0;
  steps_.clear();
}

std::optional<std::vector<bool>> Autotuner::add_step(const std::vector<ItemSeconds>& items,
                                                     Communicator& comm) {
  check(is_running() && items.size() == num_items_, "a step of another trial");
  if (num_steps_++ < kWarmSteps) return std::nullopt;
  for (const ItemSeconds& item : items) {
    steps_.push_back(-item.alone_s);  // the minimum of -x is the maximum of x
    steps_.push_back(item.together_s);
  }
  if (num_steps_ < kWarmSteps + 2 * kRounds) return std::nullopt;
  std::vector<bool> found = verdict(comm);
  start(0);
  return found;
}

std::vector<bool> Autotuner::verdict(Communicator& comm) {
  // One message for all steps.
  const at::Tensor merged_2S = reduced_on_host(comm, at::tensor(steps_), ReduceOp::kMin);
  const double* const merged = merged_2S.const_data_ptr<double>();
  const auto median_of = [&](size_t item, size_t way) {
    std::array<double, kRounds> rounds{};
    for (size_t round = 0; round < kRounds; ++round) {
      const double* const found = merged + 2 * ((2 * round + way) * num_items_ + item);
      rounds[round] = found[1] - found[0];
    }
    return median(rounds);
  };
  std::vector<bool> second_is_faster;
  for (size_t item = 0; item < num_items_; ++item)
    second_is_faster.push_back(median_of(item, 1) < median_of(item, 0));
  return second_is_faster;
}

static std::string text_of(uint64_t fingerprint, const std::vector<bool>& chosen) {
  std::string text = fmt::format("{:016x} ", fingerprint);
  for (const bool packed : chosen) text += packed ? '1' : '0';
  return text;
}

PackingChoice::PackingChoice(std::string mode) : mode_(std::move(mode)) {
  check(mode_ == "auto" || mode_ == "always" || mode_ == "never", "packed: auto, always or never");
}

void PackingChoice::follow(std::vector<bool> can_pack, uint64_t fingerprint) {
  can_pack_ = std::move(can_pack);
  fingerprint_ = fingerprint;
  chosen_.assign(can_pack_.size(), false);
  autotuner_.start(0);
  if (mode_ == "always") chosen_ = can_pack_;
  if (mode_ != "auto" || std::find(can_pack_.begin(), can_pack_.end(), true) == can_pack_.end())
    return;
  if (!adopt_stored()) autotuner_.start(can_pack_.size());
}

bool PackingChoice::adopt_stored() {
  const std::string fingerprint = text_of(fingerprint_, {});
  // A result for other masks, buckets or ranks does not apply.
  if (!stored_.starts_with(fingerprint) || stored_.size() != fingerprint.size() + can_pack_.size())
    return false;
  for (size_t i = 0; i < can_pack_.size(); ++i)
    chosen_[i] = can_pack_[i] && stored_[fingerprint.size() + i] == '1';
  return true;
}

bool PackingChoice::packs(size_t bucket) const {
  // During a trial the second way is "packed", in odd steps.
  return autotuner_.is_running() ? autotuner_.times_second_way() && can_pack_.at(bucket)
                                 : chosen_.at(bucket);
}

bool PackingChoice::add_step(const std::vector<ItemSeconds>& buckets, Communicator& comm) {
  if (!autotuner_.is_running()) return false;
  const auto second_is_faster = autotuner_.add_step(buckets, comm);
  if (!second_is_faster) return false;
  for (size_t i = 0; i < can_pack_.size(); ++i) chosen_[i] = can_pack_[i] && (*second_is_faster)[i];
  stored_ = text_of(fingerprint_, chosen_);
  return true;
}

StateList PackingChoice::state() { return {{"_lockstep/sync/packed", {}, &stored_, 0.0}}; }

}  // namespace lockstep::dist
