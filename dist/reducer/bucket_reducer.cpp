// Reduction of all buckets, and the choices that are made by measurement.
#include "dist/reducer/bucket_reducer.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/simd/bit_mask.h"
#include "base/trace.h"
#include "dist/collectives.h"
#include "dist/communicator.h"
#include "dist/reducer/bucket_reduction.h"
#include "dist/reducer/shared_bucket.h"
#include "dist/tensor_math.h"

namespace lockstep::dist {

// Autotuner: measures two ways in alternate steps, so that drift of the machine affects both alike.

namespace {

// One uncounted step of each way: the first use of a way allocates memory.
constexpr int kWarmSteps = 2;

/// Reduces to the largest alone_s and the smallest together_s over the ranks, in place, in one
/// message.
void merge_over_ranks(std::vector<ItemSeconds>* steps, Communicator& comm) {
  const auto num = static_cast<int64_t>(steps->size());
  const at::Tensor host_2S = at::empty({2 * num}, at::kDouble);
  double* seconds = host_2S.mutable_data_ptr<double>();
  for (int64_t i = 0; i < num; ++i) {
    seconds[2 * i] = -(*steps)[static_cast<size_t>(i)].alone_s;  // -min(-x) is the maximum
    seconds[2 * i + 1] = (*steps)[static_cast<size_t>(i)].together_s;
  }
  const at::Tensor there_2S = host_2S.to(comm.device());
  comm.all_reduce(there_2S, ReduceOp::kMin)->wait();
  const at::Tensor merged_2S = copy_to_host(comm, there_2S);
  seconds = merged_2S.mutable_data_ptr<double>();
  for (int64_t i = 0; i < num; ++i)
    (*steps)[static_cast<size_t>(i)] = {-seconds[2 * i], seconds[2 * i + 1]};
}

double median(std::array<double, Autotuner::kRounds> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace

void Autotuner::start(size_t num_items) {
  num_items_ = num_items;
  num_steps_ = 0;
  steps_.clear();
}

std::optional<std::vector<bool>> Autotuner::add_step(const std::vector<ItemSeconds>& items,
                                                     Communicator& comm) {
  check(is_running() && items.size() == num_items_, "a step of another trial");
  if (num_steps_++ < kWarmSteps) return std::nullopt;
  steps_.insert(steps_.end(), items.begin(), items.end());
  if (num_steps_ < kWarmSteps + 2 * kRounds) return std::nullopt;
  std::vector<bool> found = verdict(comm);
  start(0);
  return found;
}

std::vector<bool> Autotuner::verdict(Communicator& comm) {
  merge_over_ranks(&steps_, comm);
  const auto median_of = [&](size_t item, size_t way) {
    std::array<double, kRounds> rounds{};
    for (size_t round = 0; round < kRounds; ++round) {
      const ItemSeconds& found = steps_[(2 * round + way) * num_items_ + item];
      rounds[round] = found.alone_s + found.together_s;
    }
    return median(rounds);
  };
  std::vector<bool> second_is_faster;
  for (size_t item = 0; item < num_items_; ++item)
    second_is_faster.push_back(median_of(item, 1) < median_of(item, 0));
  return second_is_faster;
}

// PackingChoice: `auto` measures after each change of masks. Checkpoints store the result with its
// fingerprint.

namespace {

std::string text_of(uint64_t fingerprint, const std::vector<bool>& chosen) {
  std::string text = fmt::format("{:016x} ", fingerprint);
  for (const bool packed : chosen) text += packed ? '1' : '0';
  return text;
}

}  // namespace

std::shared_ptr<const DevicePacking> device_packing_for(Communicator& comm,
                                                        const SyncOptions& options) {
  if (options.sparse_allreduce != "always" || comm.device().is_cpu()) return nullptr;
  const bool is_whole_behind = !options.shard_optimizer && options.overlap != "true";
  if (auto packing = is_whole_behind ? comm.make_packing() : nullptr) return packing;
  throw Error(ExitCode::kConfig, "dist",
              "sync.sparse_allreduce: always on GPUs needs gradients that travel whole and behind "
              "the backward pass, between ranks: with sync.shard_optimizer, sync.overlap: true or "
              "local steps use auto or never");
}

PackingChoice::PackingChoice(std::string mode) : mode_(std::move(mode)) {
  check(mode_ == "auto" || mode_ == "always" || mode_ == "never", "packed: auto, always or never");
}

void PackingChoice::follow(std::vector<bool> can_pack, uint64_t fingerprint) {
  can_pack_ = std::move(can_pack);
  situation_ = fingerprint;
  chosen_.assign(can_pack_.size(), false);
  autotuner_.start(0);
  if (mode_ == "always") chosen_ = can_pack_;
  if (mode_ != "auto" || std::find(can_pack_.begin(), can_pack_.end(), true) == can_pack_.end())
    return;
  if (!adopt_stored()) autotuner_.start(can_pack_.size());
}

bool PackingChoice::adopt_stored() {
  const std::string fingerprint = text_of(situation_, {});
  // A result for other masks, buckets or ranks does not apply.
  if (!stored_.starts_with(fingerprint) || stored_.size() != fingerprint.size() + can_pack_.size())
    return false;
  for (size_t i = 0; i < can_pack_.size(); ++i)
    chosen_[i] = can_pack_[i] && stored_[fingerprint.size() + i] == '1';
  return true;
}

bool PackingChoice::packs(size_t bucket) const {
  // During a trial the second way is "packed", in odd steps.
  return autotuner_.is_running() ? autotuner_.takes_second() && can_pack_.at(bucket)
                                 : chosen_.at(bucket);
}

bool PackingChoice::add_step(const std::vector<ItemSeconds>& buckets, Communicator& comm) {
  if (!autotuner_.is_running()) return false;
  const auto second_is_faster = autotuner_.add_step(buckets, comm);
  if (!second_is_faster) return false;
  for (size_t i = 0; i < can_pack_.size(); ++i) chosen_[i] = can_pack_[i] && (*second_is_faster)[i];
  stored_ = text_of(situation_, chosen_);
  return true;
}

StateList PackingChoice::state() { return {{"_lockstep/sync/packed", {}, &stored_, 0.0}}; }

// BucketReducer: owns the BucketReduction of every bucket and its state in this step. Two threads
// may use it during a step: the communication thread launches, the caller packs ahead and unpacks.
// pack_states_ decides which of them packs a bucket.

namespace {

std::optional<at::ScalarType> wire_type(const std::string& name, int world_size) {
  // A single rank exchanges nothing, so it rounds nothing.
  if (world_size == 1 || name == "fp32") return std::nullopt;
  check(name == "bf16", "wire: fp32 or bf16");
  return at::kBFloat16;
}

double seconds_between(BucketReducer::Clock::time_point from, BucketReducer::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

BucketReducer::BucketReducer(Communicator& comm, const ParamTable& params,
                             const SyncOptions& options)
    : comm_(comm),
      packing_there_(device_packing_for(comm, options)),
      options_(options),
      assignment_(params, options, comm.rank(), comm.world_size()),
      packing_(options.sparse_allreduce) {
  // On GPUs only gradients that travel in place can start at a mark of backward's stream.
  if (options.overlap == "true" && (comm.is_asynchronous() || !comm.device().is_cpu()) &&
      (options.shard_optimizer || options.comm_dtype != "fp32"))
    throw Error(ExitCode::kConfig, "dist",
                "sync.overlap: true on GPUs needs gradients that travel whole and as they are: "
                "with sync.shard_optimizer or another sync.comm_dtype than fp32 use auto or false");
}

template <typename Part>
void BucketReducer::with_bucket(const char* doing, size_t bucket, const Part& part) const {
  const trace::Span span(doing, static_cast<int64_t>(bucket));
  try {
    part();
  } catch (Error& error) {
    // Without the bucket's name, a timeout on one rank would not say which parameter it waited for.
    error.append(fmt::format(" (while {} {})", doing, assignment_.text_of(bucket)));
    throw;
  }
}

std::unique_ptr<BucketReduction> BucketReducer::make_reduction(size_t bucket,
                                                               const FlatBuffer& buffer) {
  if (assignment_.is_sharded()) return make_divided(bucket, buffer);
  return std::make_unique<AllReduceBucket>(assignment_.grads_E(bucket),
                                           wire_type(options_.comm_dtype, comm_.world_size()),
                                           packing_there_);
}

std::unique_ptr<BucketReduction> BucketReducer::make_divided(size_t bucket,
                                                             const FlatBuffer& buffer) {
  const BucketShards& shards = assignment_.shards(bucket);
  if (assignment_.is_shared()) {
    std::vector<at::Tensor> grads_by_rank;
    for (const at::Tensor& grads_E : buffer.grads_by_rank)
      grads_by_rank.push_back(part_of(grads_E, assignment_.buckets()[bucket]));
    return std::make_unique<SharedBucket>(std::move(grads_by_rank), shards, comm_.rank());
  }
  auto reduction = std::make_unique<ReduceScatterBucket>(
      assignment_.grads_E(bucket), shards, comm_.rank(),
      wire_type(options_.comm_dtype, comm_.world_size()), scratch_);
  reduce_scatters_.push_back(reduction.get());
  return reduction;
}

bool BucketReducer::rebuild(const std::vector<FlatBuffer>& buffers) {
  if (!assignment_.rebuild(buffers)) return false;
  check(!assignment_.is_shared() || options_.comm_dtype == "fp32",
        "shared gradients are not rounded");
  reduce_scatters_.clear();
  bucket_reductions_.clear();
  for (size_t i = 0; i < assignment_.size(); ++i)
    bucket_reductions_.push_back(make_reduction(i, buffers[assignment_.buckets()[i].buffer]));
  dropped_.assign(assignment_.size(), Dropped::kZero);
  times_.assign(assignment_.size(), {});
  marks_.assign(assignment_.size(), nullptr);
  pack_states_ = std::make_unique<std::atomic<PackState>[]>(assignment_.size());
  masks_changed_ = false;
  // New buckets have no masks; set_kept() follows if there are any.
  packing_.follow(std::vector<bool>(assignment_.size(), false), 0);
  return true;
}

void BucketReducer::set_kept(const std::vector<FlatBuffer>& buffers, size_t buffer,
                             std::span<const uint8_t> bits, Dropped dropped) {
  const FlatBuffer& whole = buffers.at(buffer);
  if (whole.frozen) return;
  check(bits.empty() || static_cast<int64_t>(bits.size()) == num_mask_bytes(whole.grads_E.numel()),
        "a mask has one bit for each element of its buffer");
  for (size_t i = 0; i < assignment_.size(); ++i) {
    const Bucket& bucket = assignment_.buckets()[i];
    if (bucket.buffer != buffer) continue;
    dropped_[i] = dropped;
    if (bits.empty())
      bucket_reductions_[i]->keep_all();
    else
      bucket_reductions_[i]->set_kept(bits.data(), bucket.begin_E);
  }
  masks_changed_ = true;
}

int64_t BucketReducer::dense_bytes() const {
  int64_t num_bytes = 0;
  for (const auto& reduction : bucket_reductions_) num_bytes += reduction->dense_bytes();
  return num_bytes;
}

uint64_t BucketReducer::fingerprint() const {
  std::string text = fmt::format("{} ranks, wire {}{}", comm_.world_size(), options_.comm_dtype,
                                 assignment_.is_sharded() ? ", sharded" : "");
  for (size_t i = 0; i < assignment_.size(); ++i) {
    const Bucket& bucket = assignment_.buckets()[i];
    text += fmt::format(";{} {} {} ", bucket.buffer, bucket.begin_E, bucket.end_E);
    const std::vector<uint8_t>& bits = bucket_reductions_[i]->kept_bits();
    text.append(bits.begin(), bits.end());
  }
  // Covers all that packing times depend on. The same number tells whether masks agree.
  return static_cast<uint64_t>(fnv1a64(text));
}

void BucketReducer::begin_step() {
  for (size_t i = 0; i < assignment_.size(); ++i) pack_states_[i].store(PackState::kNone);
  std::fill(marks_.begin(), marks_.end(), nullptr);
  num_unpacked_ = num_marked_ = 0;
  all_finite_ = true;
  if (!masks_changed_) return;
  masks_changed_ = false;
  const uint64_t now = fingerprint();
  // Must come before any reduction: with different masks, payloads of ranks would not match.
  if (!all_equal(comm_, static_cast<int64_t>(now)))
    throw Error(ExitCode::kDisagree, "dist",
                "the ranks have different masks for their gradients; nothing was sent")
        .everywhere();
  std::vector<bool> can_pack;
  for (const auto& reduction : bucket_reductions_)
    can_pack.push_back(reduction->can_pack() && comm_.world_size() > 1);
  packing_.follow(std::move(can_pack), now);
}

void BucketReducer::pack(size_t bucket) {
  std::atomic<PackState>& state = pack_states_[bucket];
  // The first caller packs; another one waits until that pack is complete.
  PackState before = PackState::kNone;
  if (!state.compare_exchange_strong(before, PackState::kUnderWay)) {
    state.wait(PackState::kUnderWay);
    check(state == PackState::kDone, "another thread could not prepare a bucket");
    return;
  }
  times_[bucket].start = Clock::now();
  try {
    bucket_reductions_[bucket]->pack(packing_.packs(bucket));
    state = PackState::kDone;
  } catch (...) {
    state = PackState::kFailed;
    state.notify_all();
    throw;
  }
  times_[bucket].packed = Clock::now();
  state.notify_all();
}

void BucketReducer::mark_complete(size_t num_buckets) {
  if (!comm_.is_asynchronous() || num_buckets <= num_marked_) return;
  const std::shared_ptr<StreamMark> mark = comm_.mark();
  // One mark for all newly complete buckets.
  std::fill(marks_.begin() + static_cast<int64_t>(num_marked_),
            marks_.begin() + static_cast<int64_t>(num_buckets), mark);
  num_marked_ = num_buckets;
}

bool BucketReducer::can_arrive_in_turn() const {
  return comm_.world_size() > 1 && can_pack_beside() && options_.comm_dtype == "fp32" &&
         std::all_of(assignment_.grads_by_buffer().begin(), assignment_.grads_by_buffer().end(),
                     [](const at::Tensor& grads_E) {
                       return !grads_E.defined() ||
                              (grads_E.is_cpu() && grads_E.scalar_type() == at::kFloat);
                     });
}

double BucketReducer::largest_from(size_t bucket) const {
  double largest = 0;
  for (; bucket < assignment_.size(); ++bucket)
    largest = std::max(largest, largest_magnitude(assignment_.grads_E(bucket)));
  return largest;
}

void BucketReducer::launch(size_t bucket) {
  pack(bucket);
  // A packed or rounded payload is made by the stream's later work, so only in-place payloads may
  // start at the mark.
  if (bucket_reductions_[bucket]->travels_in_place())
    comm_.begin_behind(std::exchange(marks_[bucket], nullptr));
  BucketTimes& times = times_[bucket];
  times.launched = Clock::now();
  with_bucket("reducing", bucket, [&] {
    std::unique_ptr<Work> work = bucket_reductions_[bucket]->launch(comm_);
    // Asynchronous collectives end in wait(), blocking ones here.
    if (comm_.is_asynchronous())
      under_way_.push_back(std::move(work));
    else
      work->wait();
  });
  times.reduced = Clock::now();
}

void BucketReducer::wait() {
  for (size_t bucket = 0; bucket < under_way_.size(); ++bucket)
    with_bucket("reducing", bucket, [&] { under_way_[bucket]->wait(); });
  under_way_.clear();
}

void BucketReducer::unpack(size_t bucket, int64_t divisor) {
  check(bucket == num_unpacked_, "buckets are unpacked in turn");
  const auto start = Clock::now();
  // unpack() first: it must run even if an earlier bucket was not finite.
  all_finite_ = bucket_reductions_[bucket]->unpack(divisor, dropped_[bucket]) && all_finite_;
  times_[bucket].unpack_s = seconds_between(start, Clock::now());
  ++num_unpacked_;
}

bool BucketReducer::take_means(int64_t divisor) {
  if (!comm_.device().is_cpu())
    // One wait of the host for all buckets.
    return std::isfinite(copy_to_host(comm_, begin_means(divisor)).item<double>());
  while (num_unpacked_ < bucket_reductions_.size()) unpack(num_unpacked_, divisor);
  return all_finite_;
}

at::Tensor BucketReducer::begin_means(int64_t divisor) {
  while (num_unpacked_ < bucket_reductions_.size()) unpack(num_unpacked_, divisor);
  std::vector<at::Tensor> means;
  const std::vector<at::Tensor>& all = assignment_.grads_by_buffer();
  if (assignment_.is_sharded())
    for (const auto& reduction : bucket_reductions_) means.push_back(reduction->means_E());
  else  // whole buffers: fewer passes
    std::copy_if(all.begin(), all.end(), std::back_inserter(means),
                 [](const at::Tensor& grads_E) { return grads_E.defined(); });
  return largest_of_all(comm_.device(), means);
}

bool BucketReducer::travel_whole() const {
  return !assignment_.is_sharded() && options_.comm_dtype == "fp32" && packing_there_ == nullptr;
}

void BucketReducer::count(Clock::time_point finish_start, GlobalStepStats* totals) const {
  int64_t gradient_bytes = 0;
  totals->bucket_s.reserve(bucket_reductions_.size());
  for (size_t i = 0; i < bucket_reductions_.size(); ++i) {
    const BucketTimes& times = times_[i];
    gradient_bytes += bucket_reductions_[i]->payload_bytes();
    totals->bytes_saved +=
        bucket_reductions_[i]->dense_bytes() - bucket_reductions_[i]->payload_bytes();
    const double reduce_s = seconds_between(times.launched, times.reduced);
    totals->reduce_s += reduce_s;
    if (!assignment_.is_shared()) totals->bucket_s.push_back(reduce_s);
    totals->overlapped_s +=
        // The part of the reduction before finish(), while backward still computed.
        std::max(0.0, seconds_between(times.launched, std::min(times.reduced, finish_start)));
  }
  // Bytes on the wire: an all_reduce sends 2 (N - 1) / N of its payload, a reduce_scatter half.
  const int64_t twice_sent =
      2 * totals->bytes_reduced - (assignment_.is_sharded() ? gradient_bytes : 0);
  totals->bytes_sent = (comm_.world_size() - 1) * twice_sent / comm_.world_size();
}

void BucketReducer::gather(const std::vector<FlatBuffer>& buffers, GatherTotals* totals) {
  if (assignment_.is_shared()) return comm_.barrier();
  // New masks apply from the next begin_step() on; until then the old choice does not fit them.
  for (size_t i = 0; i < reduce_scatters_.size(); ++i) {
    const Bucket& bucket = assignment_.buckets()[i];
    const ReduceScatterBucket& reduction = *reduce_scatters_[i];
    const at::Tensor values_E = part_of(buffers[bucket.buffer].values_E, bucket);
    const bool packed = !masks_changed_ && packing_.packs(i);
    with_bucket("gathering the values of", i, [&] {
      const int64_t num_bytes =
          gather_pieces(comm_, values_E, assignment_.shards(i), reduction.kept(), packed, scratch_);
      totals->bytes_gathered += num_bytes;
      totals->bytes_saved += reduction.dense_bytes() - num_bytes;
    });
  }
}

bool BucketReducer::learn() {
  if (!packing_.is_measuring()) return false;
  std::vector<ItemSeconds> seconds;
  for (const BucketTimes& times : times_)
    // Packing and unpacking are this rank's own work, the reduction is common.
    seconds.push_back({.alone_s = seconds_between(times.start, times.packed) + times.unpack_s,
                       .together_s = seconds_between(times.launched, times.reduced)});
  return packing_.add_step(seconds, comm_);
}

}  // namespace lockstep::dist
