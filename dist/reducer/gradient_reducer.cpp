// Drives a step: prepare_for_backward() opens it, hooks of backward release complete buckets, and
// finish() sends the rest and decides whether the step counts.
//
// Messages of a step are jobs: the buckets in order and, at num_before_stats_, the statistics.
// The order is equal on all ranks. So jobs run either all on one thread, or first on the
// communication thread and then, after its end(), on the caller.
//
// Three kinds of threads: the caller, autograd's threads (autograd_hook, on_written), and the
// communication thread. Autograd's threads use only ready_tracker_, which locks, mark_complete()
// and CommunicationThread::release(). The communication thread launches buckets, while the caller
// packs later ones and unpacks earlier ones.
#include "dist/reducer/gradient_reducer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/log.h"
#include "base/simd/bit_mask.h"
#include "base/trace.h"
#include "dist/tensor_math.h"

namespace lockstep::dist {
namespace {

/// Bound on the sum of magnitudes: below it, sums of float32 are finite in every order.
constexpr double kSafeBound = std::numeric_limits<float>::max() / 2;

using TimePoint = std::chrono::steady_clock::time_point;

double seconds_between(TimePoint from, TimePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

double seconds_since(TimePoint start) {
  return seconds_between(start, std::chrono::steady_clock::now());
}

}  // namespace

GradientReducer::GradientReducer(Communicator& comm, std::vector<FlatBuffer>& buffers,
                                 const ParamTable& params, const SyncOptions& options)
    : comm_(comm),
      buffers_(buffers),
      params_(params),
      options_(options),
      packing_kernels_(require_supported(comm, options)),
      assignment_(params_, options, comm.rank(), comm.world_size()),
      packing_(options.sparse_allreduce),
      was_named_(params.size(), false) {
  update_modes();
}

GradientReducer::~GradientReducer() { listen_to({}); }

void GradientReducer::update_modes() {
  ReductionFacts facts{.world_size = comm_.world_size(),
                       .is_asynchronous = comm_.is_asynchronous(),
                       .packs_on_gpu = packing_kernels_ != nullptr,
                       .are_shared = assignment_.is_shared(),
                       .are_cpu_floats = assignment_.are_cpu_floats(),
                       .num_buckets = assignment_.size()};
  for (const MessageBucket* message : messages_) facts.dense_bytes += message->dense_bytes();
  modes_ = reduction_modes(options_, facts);
}

void GradientReducer::send_after_backward() {
  options_.overlap = "false";
  update_modes();
}

void GradientReducer::rebuild_buckets() {
  // Hooks, masks and measurements belong to the old buckets.
  if (!assignment_.rebuild(buffers_)) return;
  messages_.clear();
  buckets_.clear();
  update_modes();
  for (size_t i = 0; i < assignment_.size(); ++i) make_bucket(i);
  update_modes();  // overlap depends on the buckets' bytes
  dropped_.assign(buckets_.size(), Dropped::kZero);
  marks_.assign(messages_.size(), nullptr);
  masks_changed_ = false;
  packing_.follow(std::vector<bool>(messages_.size(), false), 0);
  ready_tracker_.rebuild(assignment_.buckets());
  hooks_.reset();
  if (follows_backward_) set_hooks();
  overlap_is_faster_ = false;
  overlap_trial_.start(modes_.measures_overlap ? 1 : 0);
}

void GradientReducer::make_bucket(size_t bucket) {
  const at::Tensor grads_E = assignment_.grads_E(bucket);
  const Bucket& cut = assignment_.buckets()[bucket];
  const auto add = [this](auto made) {
    auto* const added = made.get();
    buckets_.push_back(std::move(made));
    return added;
  };
  std::vector<at::Tensor> grads_by_rank;
  switch (modes_.kind) {
    case ReductionKind::kAllReduce:
      messages_.push_back(
          add(std::make_unique<AllReduceBucket>(grads_E, modes_.wire, packing_kernels_)));
      break;
    case ReductionKind::kReduceScatter:
      // Slots of the owner's size would send a matrix once for each rank.
      if (buffers_[cut.buffer].is_matrix)
        messages_.push_back(
            add(std::make_unique<AllReduceBucket>(grads_E, modes_.wire, packing_kernels_)));
      else
        messages_.push_back(add(std::make_unique<ReduceScatterBucket>(
            grads_E, assignment_.shards(bucket), comm_.rank(), modes_.wire, scratch_)));
      break;
    case ReductionKind::kShared:
      for (const at::Tensor& flat_E : buffers_[cut.buffer].grads_by_rank)
        grads_by_rank.push_back(part_of(flat_E, cut));
      add(std::make_unique<SharedBucket>(grads_by_rank, assignment_.shards(bucket), comm_.rank()));
  }
}

void GradientReducer::set_hooks() {
  hooks_ = std::make_unique<GradientHooks>(params_, [this](int64_t i) { autograd_hook(i); });
}

void GradientReducer::follow_backward(bool follows) {
  if (std::exchange(follows_backward_, follows) == follows) return;
  check(!is_under_way(), "follow_backward() while gradients are in flight");
  listen_to({});
  hooks_.reset();
  if (follows && !buckets_.empty()) set_hooks();
}

void GradientReducer::set_kept(size_t buffer, std::span<const uint8_t> bits, Dropped dropped) {
  check(!is_under_way(), "new masks while gradients are in flight");
  rebuild_buckets();
  const FlatBuffer& whole = buffers_.at(buffer);
  if (whole.frozen) return;
  check(bits.empty() || static_cast<int64_t>(bits.size()) == num_mask_bytes(whole.grads_E.numel()),
        "a mask has one bit for each element of its buffer");
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const Bucket& bucket = assignment_.buckets()[i];
    if (bucket.buffer != buffer) continue;
    dropped_[i] = dropped;
    if (bits.empty())
      buckets_[i]->keep_all();
    else
      buckets_[i]->set_kept(bits.data(), bucket.begin_E);
  }
  masks_changed_ = true;
}

/// Digest of all that packing times depend on. The same number tells whether masks agree.
uint64_t GradientReducer::fingerprint() const {
  std::string text = fmt::format("{} ranks, wire {}{}", comm_.world_size(), options_.comm_dtype,
                                 modes_.is_sharded() ? ", sharded" : "");
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const Bucket& bucket = assignment_.buckets()[i];
    text += fmt::format(";{} {} {} ", bucket.buffer, bucket.begin_E, bucket.end_E);
    const std::vector<uint8_t>& bits = buckets_[i]->kept_bits();
    text.append(bits.begin(), bits.end());
  }
  return static_cast<uint64_t>(fnv1a64(text));
}

void GradientReducer::agree_on_masks() {
  if (!std::exchange(masks_changed_, false)) return;
  const uint64_t now = fingerprint();
  // Must come before any reduction: with different masks, payloads of ranks would not match.
  if (!all_equal(comm_, static_cast<int64_t>(now)))
    throw Error(ExitCode::kDisagree, "dist",
                "the ranks have different masks for their gradients; nothing was sent")
        .everywhere();
  std::vector<bool> can_pack;
  for (const MessageBucket* message : messages_)
    can_pack.push_back(message->can_pack() && comm_.world_size() > 1);
  packing_.follow(std::move(can_pack), now);
}

bool GradientReducer::is_sharded() {
  rebuild_buckets();
  return modes_.is_sharded();
}

void GradientReducer::begin_changes() {
  if (modes_.kind == ReductionKind::kShared) comm_.barrier();
}

std::vector<ParamShard> GradientReducer::local_shards() {
  check(!is_armed_, "local_shards() while gradients are in flight");
  rebuild_buckets();
  return assignment_.local_shards();
}

bool GradientReducer::overlaps_now() const {
  if (!modes_.may_overlap) return false;
  // Packing is measured first, since overlap depends on it.
  if (overlap_trial_.is_running() && !packing_.is_measuring())
    return overlap_trial_.times_second_way();
  return options_.overlap == "true" || overlap_is_faster_;
}

/// True if the statistics precede the last buckets. All ranks must agree on their place, so no
/// local condition may enter here. The trial's state is equal on all ranks.
bool GradientReducer::stats_come_first() const {
  const bool is_tried = overlap_trial_.is_running() || overlap_is_faster_;
  return requests_.by_bucket && !requests_.squared_grad_norm && modes_.may_be_late &&
         modes_.may_overlap && (options_.overlap == "true" || is_tried);
}

/// Returns the same on all ranks that ask: true if finish() would find a finite step once the late
/// means have arrived.
bool GradientReducer::may_update_early(const LocalStepStats& local) const {
  const GlobalStepStats totals = totals_of(local);
  return totals.finite() && totals.num_skipped == 0 && totals.counts_nothing() && all_finite_ &&
         stats_V_[-1].item<double>() < kSafeBound;
}

void GradientReducer::prepare_for_backward(const StepRequests& requests) {
  check(!is_under_way(), "prepare_for_backward() twice without finish()");
  requests_ = requests;
  // The callbacks of the last step refer to its graph; none may fire in the new step.
  listen_to({});
  rebuild_buckets();
  for (MessageBucket* message : messages_) message->begin_step();
  std::fill(marks_.begin(), marks_.end(), nullptr);
  num_unpacked_ = num_marked_ = 0;
  all_finite_ = true;
  agree_on_masks();
  ready_tracker_.begin();
  num_before_stats_ =
      stats_come_first() ? num_before_last_to_come(assignment_.buckets()) : messages_.size();
  begin_ = Clock::now();
  bytes_before_ = comm_.bytes_reduced();
  sends_in_backward_ = overlaps_now();
  if (sends_in_backward_) {
    // Created at first use: without overlap there is no thread.
    if (thread_ == nullptr)
      thread_ = std::make_unique<CommunicationThread>([this](size_t job) { run_job(job); });
    thread_->begin();
  }
  is_armed_ = true;
}

void GradientReducer::follow_graph(const at::Tensor& loss) {
  const bool may_tell = std::ranges::any_of(
      params_, [](const Param& param) { return param.grad_in_place != nullptr; });
  if (is_armed_ && sends_in_backward_ && hooks_ != nullptr && may_tell)
    listen_to(hooks_->with_one_source(loss));
}

/// Sets the listeners of these parameters and removes all others.
void GradientReducer::listen_to(const std::vector<int64_t>& params) {
  for (const Param& param : params_)
    if (param.grad_in_place != nullptr) param.grad_in_place->on_written = nullptr;
  for (const int64_t i : params) {
    const auto& in_place = params_[static_cast<size_t>(i)].grad_in_place;
    if (in_place != nullptr)
      in_place->on_written = [this, i](int64_t num_elements) { on_written(i, num_elements); };
  }
}

void GradientReducer::on_written(int64_t param, int64_t num_elements) {
  if (is_armed_ && ready_tracker_.mark_written(param, num_elements)) release_complete();
}

void GradientReducer::autograd_hook(int64_t param) {
  // is_armed_: micro-batches before the last also run backward and must not release buckets.
  if (is_armed_ && ready_tracker_.mark_ready(param)) release_complete();
}

void GradientReducer::release_complete() {
  if (!sends_in_backward_) return;
  const size_t num_complete = ready_tracker_.num_complete();
  // First the mark, then the release: the communication thread reads the mark.
  mark_complete(num_complete);
  // The statistics exist only after backward. So the thread must not pass their place before
  // finish().
  thread_->release(std::min(num_complete, num_before_stats_));
}

/// Declares that buckets 0 to num_buckets, exclusive, are complete once the calling thread's stream
/// has done its present work. With asynchronous calls, these buckets are sent after that work only,
/// not after later work of the stream.
void GradientReducer::mark_complete(size_t num_buckets) {
  if (!comm_.is_asynchronous() || num_buckets <= num_marked_) return;
  const std::shared_ptr<StreamMark> mark = comm_.mark();
  // One mark for all newly complete buckets.
  std::fill(marks_.begin() + static_cast<int64_t>(num_marked_),
            marks_.begin() + static_cast<int64_t>(num_buckets), mark);
  num_marked_ = num_buckets;
}

void GradientReducer::run_job(size_t job) {
  if (job != num_before_stats_) return reduce_bucket(bucket_of(job));
  // The statistics may follow only completed buckets: an asynchronous bucket is ordered first.
  wait_for_reductions();
  comm_.all_reduce(stats_V_, ReduceOp::kSum)->wait();
}

template <typename Part>
void GradientReducer::with_bucket(const char* doing, size_t bucket, const Part& part) const {
  const trace::Span span(doing, static_cast<int64_t>(bucket));
  try {
    part();
  } catch (Error& error) {
    // Without the bucket's name, a timeout on one rank would not say which parameter it waited for.
    error.append(fmt::format(" (while {} {})", doing, assignment_.text_of(bucket)));
    throw;
  }
}

void GradientReducer::reduce_bucket(size_t bucket) {
  MessageBucket& message = *messages_[bucket];
  message.ensure_packed(packing_.packs(bucket));
  // A packed or rounded payload is made by the stream's later work, so only in-place payloads may
  // start at the mark.
  if (message.travels_in_place()) comm_.start_after(std::exchange(marks_[bucket], nullptr));
  message.times.launched = Clock::now();
  with_bucket("reducing", bucket, [&] {
    std::unique_ptr<Work> work = message.launch(comm_);
    // Asynchronous collectives end in wait_for_reductions(), blocking ones here.
    if (comm_.is_asynchronous())
      under_way_.push_back(std::move(work));
    else
      work->wait();
  });
  message.times.reduced = Clock::now();
}

void GradientReducer::wait_for_reductions() {
  for (size_t bucket = 0; bucket < under_way_.size(); ++bucket)
    with_bucket("reducing", bucket, [&] { under_way_[bucket]->wait(); });
  under_way_.clear();
}

void GradientReducer::send_rest(const LocalStepStats& local) {
  const bool has_begun = ready_tracker_.num_complete() > 0;
  if (sends_in_backward_ && has_begun && modes_.packs_concurrently && follow_thread(local)) return;
  // Without work in backward, waking the thread would cost more than sending here.
  for (size_t job = sends_in_backward_ ? thread_->end() : 0; job <= messages_.size(); ++job)
    run_job(job);
}

/// Packs what the thread will send and unpacks what it has sent, while the thread sends. False if
/// the caller must end the thread's round: all is sent, or a job has thrown.
bool GradientReducer::follow_thread(const LocalStepStats& local) {
  const size_t num_jobs = messages_.size() + 1;
  // The order of jobs stays; only the release is at once.
  thread_->release(num_jobs);
  for (size_t i = 0; i < messages_.size(); ++i) messages_[i]->ensure_packed(packing_.packs(i));
  for (size_t job = 0; job < num_jobs; ++job) {
    if (!thread_->wait_for(job + 1)) return false;
    if (!local.gradient_divisor) continue;
    if (job != num_before_stats_) {
      finalize_bucket(bucket_of(job), *local.gradient_divisor);
    } else if (job < messages_.size() && may_update_early(local)) {
      num_late_ = messages_.size() - job;
      return true;
    }
  }
  return false;
}

at::Tensor GradientReducer::stats_message(const LocalStepStats& local) const {
  const at::Tensor local_V = encode_stats(local, comm_.device());
  if (num_before_stats_ == messages_.size()) return local_V;
  // A bound of the buckets that follow. Read before any of them is reduced: it is that of local
  // gradients.
  double largest = 0;
  for (size_t i = num_before_stats_; i < assignment_.size(); ++i)
    largest = std::max(largest, largest_magnitude(assignment_.grads_E(i)));
  return at::cat({local_V, at::full({1}, largest, local_V.options())});
}

GlobalStepStats GradientReducer::totals_of(const LocalStepStats& local) const {
  GlobalStepStats totals = decode_stats(stats_V_, local.counts.size());
  totals.own_work_s = local.work_s;
  totals.is_complete = totals.num_samples >= local.expected_samples.value_or(0);
  check(totals.num_samples > 0 || !totals.is_complete, "a step without samples on any rank");
  return totals;
}

GlobalStepStats GradientReducer::finish(const LocalStepStats& local, const EarlyUpdate& update) {
  check(is_armed_, "finish() without prepare_for_backward()");
  check(local.votes < (1U << kNumVotes), "a vote beyond kNumVotes");
  is_armed_ = false;
  finish_start_ = Clock::now();
  const std::shared_ptr<StreamMark> computed = comm_.mark();
  stats_V_ = stats_message(local);
  send_rest(local);
  const Read read = read_sums(local, computed, update);
  GlobalStepStats totals = totals_of(local);
  totals.compute_s = read.compute_s;
  totals.update_s = read.update_s;
  totals.wait_s = seconds_since(finish_start_) - read.compute_s - read.update_s;
  // The last buckets are late: return now, finish_late() completes the totals.
  if (num_late_ > 0) {
    late_divisor_ = local.gradient_divisor;
    early_s_ = seconds_since(begin_);
    late_wait_s_ = 0;
    return totals;
  }
  check_means(local.gradient_divisor.value_or(std::max<int64_t>(1, totals.num_samples)), read,
              &totals);
  conclude(seconds_since(begin_), &totals);
  return totals;
}

PendingShards GradientReducer::pending_shards() {
  PendingShards late{.regions = {}, .wait_for_next = [this] { wait_for_late(); }};
  const std::vector<Bucket>& buckets = assignment_.buckets();
  for (size_t i = buckets.size() - num_late_; i < buckets.size(); ++i)
    late.regions.push_back({buckets[i].buffer, buckets[i].begin_E, buckets[i].end_E});
  return late;
}

void GradientReducer::wait_for_late() {
  const trace::Span span("wait for all-reduce");
  const auto start = Clock::now();
  check(num_late_ > 0, "all buckets have arrived");
  const size_t bucket = messages_.size() - num_late_;
  // Late buckets follow the statistics, so this is job bucket + 1. end() throws what stopped it.
  if (!thread_->wait_for(bucket + 2)) thread_->end();
  // This thread unpacks, while the communication thread sends the next bucket.
  finalize_bucket(bucket, *late_divisor_);
  if (--num_late_ == 0) thread_->end();
  late_wait_s_ += seconds_since(start);
}

void GradientReducer::finish_late(GlobalStepStats* totals) {
  if (!late_divisor_) return;
  check(num_late_ == 0, "finish_late() before all gradients were waited for");
  // Only the check is left: wait_for_late() has unpacked every bucket.
  check(finalize_buckets(*late_divisor_), "sums within a bound are finite");
  late_divisor_.reset();
  totals->late_wait_s = late_wait_s_;
  totals->wait_s += late_wait_s_;
  conclude(early_s_ + late_wait_s_, totals);
  double late_s = 0;
  for (size_t i = num_before_stats_; i < totals->bucket_s.size(); ++i)
    late_s += totals->bucket_s[i];
  totals->overlapped_s += std::max(0.0, late_s - late_wait_s_);
}

void GradientReducer::conclude(double seconds, GlobalStepStats* totals) {
  totals->bytes_reduced = comm_.bytes_reduced() - bytes_before_;
  count_messages(totals);
  name_missing();
  learn(seconds);
}

/// Waits for the sums: the only wait of the host in a step on a GPU. Means and their check are
/// enqueued first, if the divisor is known and nothing is sharded.
GradientReducer::Read GradientReducer::read_sums(const LocalStepStats& local,
                                                 const std::shared_ptr<StreamMark>& computed,
                                                 const EarlyUpdate& update) {
  Read read;
  at::Tensor host_V;  // the sums and the largest mean
  std::shared_ptr<StreamMark> copied;
  if (computed != nullptr) {
    if (local.gradient_divisor && modes_.updates_early) {
      // Enqueue everything before the wait, so that the device has no gap between kernels. The copy
      // to the host comes before the update, which would delay it.
      const at::Tensor largest_1 = begin_means(*local.gradient_divisor);
      const at::Tensor both_V = at::cat({stats_V_, largest_1});
      // Pinned memory, so that the copy does not block the host.
      host_V = at::empty(both_V.sizes(),
                         at::TensorOptions(both_V.scalar_type()).pinned_memory(both_V.is_cuda()));
      host_V.copy_(both_V, /*non_blocking=*/true);
      copied = comm_.mark();
      if (update) {
        const auto start = Clock::now();
        update(found_inf(stats_V_, largest_1, local.counts.size()));
        read.update_s = seconds_since(start);
      }
    }
    const trace::Span span("wait for the GPU");
    computed->wait_on_host();
    read.compute_s = std::max(0.0, seconds_since(finish_start_) - read.update_s);
  }
  if (copied == nullptr) {
    stats_V_ = copy_to_host(comm_, stats_V_);
    return read;
  }
  comm_.settle();
  copied->wait_on_host();
  const int64_t num_stats = host_V.numel() - 1;
  read.are_finite = std::isfinite(host_V[num_stats].item<double>());
  stats_V_ = host_V.narrow(0, 0, num_stats);
  return read;
}

/// Divides one bucket's sums.
void GradientReducer::finalize_bucket(size_t bucket, int64_t divisor) {
  check(bucket == num_unpacked_, "buckets are unpacked in turn");
  const auto start = Clock::now();
  // unpack() first: it must run even if an earlier bucket was not finite.
  all_finite_ = buckets_[bucket]->unpack(divisor, dropped_[bucket]) && all_finite_;
  if (!messages_.empty()) messages_[bucket]->times.unpack_s = seconds_since(start);
  ++num_unpacked_;
}

/// Divides all remaining sums. False if a mean of this rank is not finite.
bool GradientReducer::finalize_buckets(int64_t divisor) {
  if (!comm_.device().is_cpu())
    // One wait of the host for all buckets.
    return std::isfinite(copy_to_host(comm_, begin_means(divisor)).item<double>());
  while (num_unpacked_ < buckets_.size()) finalize_bucket(num_unpacked_, divisor);
  return all_finite_;
}

/// Divides all remaining sums on a device, without a wait of the host. Returns largest_of_all() of
/// the means.
at::Tensor GradientReducer::begin_means(int64_t divisor) {
  while (num_unpacked_ < buckets_.size()) finalize_bucket(num_unpacked_, divisor);
  if (!modes_.is_sharded())  // whole buffers: fewer passes
    return largest_of_all(comm_.device(), assignment_.grads_by_buffer());
  std::vector<at::Tensor> means;
  for (const auto& bucket : buckets_) means.push_back(bucket->means_E());
  return largest_of_all(comm_.device(), means);
}

void GradientReducer::check_means(int64_t divisor, const Read& read, GlobalStepStats* totals) {
  totals->gradients_finite = read.are_finite ? *read.are_finite : finalize_buckets(divisor);
  Superaccumulator squares;
  if (requests_.squared_grad_norm)
    add_gradient_squares(comm_, buffers_, assignment_.local_shards(), assignment_.row_E_by_param(),
                         &squares);
  if (modes_.is_sharded()) {
    int64_t num_bad_ranks = totals->gradients_finite ? 0 : 1;
    if (requests_.squared_grad_norm)
      join_over_ranks(comm_, &squares, {&num_bad_ranks, 1});
    else
      num_bad_ranks = sum_of(comm_, num_bad_ranks);
    totals->gradients_finite = num_bad_ranks == 0;
  }
  if (requests_.squared_grad_norm) totals->squared_grad_norm = squares.value();
}

/// Returns the rank that owns all of a matrix.
static int owner_of(const BucketShards& shards) {
  int owner = 0;
  while (shards.size(owner) < shards.num_elements()) ++owner;
  return owner;
}

/// Returns the bytes of all ranks together.
int64_t GradientReducer::gather_bucket(size_t index) {
  const Bucket& bucket = assignment_.buckets()[index];
  const FlatBuffer& buffer = buffers_[bucket.buffer];
  const at::Tensor values_E = part_of(buffer.values_E, bucket);
  int64_t num_bytes = static_cast<int64_t>(values_E.nbytes());
  with_bucket("gathering the values of", index, [&] {
    if (buffer.is_matrix) {
      comm_.broadcast(values_E, owner_of(assignment_.shards(index)));
      return;
    }
    // New masks apply from the next step on; until then the old choice does not fit them.
    const bool packed = !masks_changed_ && packing_.packs(index);
    num_bytes =
        static_cast<const ReduceScatterBucket&>(*messages_[index]).gather(comm_, values_E, packed);
  });
  return num_bytes;
}

GatherTotals GradientReducer::gather_values() {
  check(!is_under_way(), "gather_values() while gradients are in flight");
  const auto start = Clock::now();
  GatherTotals totals;
  if (modes_.kind == ReductionKind::kShared) comm_.barrier();
  for (size_t i = 0; modes_.kind == ReductionKind::kReduceScatter && i < messages_.size(); ++i) {
    const int64_t num_bytes = gather_bucket(i);
    totals.bytes_gathered += num_bytes;
    totals.bytes_saved += messages_[i]->dense_bytes() - num_bytes;
  }
  totals.gather_s = seconds_since(start);
  return totals;
}

void GradientReducer::sum(const at::Tensor& numbers) {
  check(!is_under_way(), "sum() while gradients are in flight");
  numbers.copy_(reduced_on_host(comm_, numbers, ReduceOp::kSum));
}

/// Adds bytes sent and saved, and seconds of the step. bytes_reduced must be set.
void GradientReducer::count_messages(GlobalStepStats* totals) const {
  int64_t gradient_bytes = 0;
  totals->bucket_s.reserve(messages_.size());
  for (const MessageBucket* message : messages_) {
    const MessageBucket::Times& times = message->times;
    gradient_bytes += message->payload_bytes();
    totals->bytes_saved += message->dense_bytes() - message->payload_bytes();
    totals->bucket_s.push_back(seconds_between(times.launched, times.reduced));
    totals->reduce_s += totals->bucket_s.back();
    // The part of the reduction before finish(), while backward still computed.
    totals->overlapped_s +=
        std::max(0.0, seconds_between(times.launched, std::min(times.reduced, finish_start_)));
  }
  // Bytes on the wire: an all_reduce sends 2 (N - 1) / N of its payload, a reduce_scatter half.
  const int64_t twice_sent = 2 * totals->bytes_reduced - (modes_.is_sharded() ? gradient_bytes : 0);
  totals->bytes_sent = (comm_.world_size() - 1) * twice_sent / comm_.world_size();
}

/// Feeds the step to the running measurement.
void GradientReducer::learn(double seconds) {
  if (packing_.is_measuring()) {
    std::vector<ItemSeconds> by_bucket;
    for (const MessageBucket* message : messages_) {
      const MessageBucket::Times& times = message->times;
      // Packing and unpacking are this rank's own work, the reduction is common.
      by_bucket.push_back({.alone_s = seconds_between(times.start, times.packed) + times.unpack_s,
                           .together_s = seconds_between(times.launched, times.reduced)});
    }
    // The new packing changes messages and balance, so overlap is measured again.
    if (packing_.add_step(by_bucket, comm_) && modes_.measures_overlap) overlap_trial_.start(1);
  } else if (overlap_trial_.is_running()) {
    const auto verdict = overlap_trial_.add_step({{.alone_s = seconds}}, comm_);
    if (verdict) overlap_is_faster_ = verdict->front();
  }
}

void GradientReducer::name_missing() {
  if (!names_missing_ || hooks_ == nullptr || comm_.rank() != 0 || !ready_tracker_.any()) return;
  std::vector<std::string> names;
  for (const int64_t param : ready_tracker_.missing()) {
    const auto i = static_cast<size_t>(param);
    if (!was_named_.at(i)) names.push_back(params_[i].name);
    was_named_[i] = true;
  }
  if (!names.empty())
    log::warning("dist", fmt::format("no gradient for {} in backward; using zeros (logged once)",
                                     fmt::join(names, ", ")));
}

}  // namespace lockstep::dist
