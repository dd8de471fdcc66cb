// Drives a step: prepare_for_backward() opens it, hooks of backward release complete buckets, and
// finish() sends the rest and decides whether the step counts. BucketReducer knows the buckets,
// StepMessages the order of messages.
//
// Three kinds of threads: the caller, autograd's threads (on_gradient, on_written), and the
// communication thread inside StepMessages. Autograd's threads use only ready_tracker_, which
// locks, mark_complete() and release().
#include "dist/reducer/gradient_reducer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/log.h"
#include "base/trace.h"
#include "dist/collectives.h"
#include "dist/communicator.h"
#include "dist/reducer/step_stats.h"

namespace lockstep::dist {
namespace {

/// Least total bytes for `auto`. Below this, waking a thread costs more than overlap can hide.
constexpr int64_t kLeastOverlapBytes = 1 << 20;

/// Bound on the sum of magnitudes: below it, sums of float32 are finite in every order.
constexpr double kSafeBound = std::numeric_limits<float>::max() / 2;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

GradientReducer::GradientReducer(Communicator& comm, std::vector<FlatBuffer>& buffers,
                                 const ParamTable& params, const SyncOptions& options)
    : comm_(comm),
      buffers_(buffers),
      params_(params),
      options_(options),
      buckets_(comm, params_, options_),
      was_named_(params.size(), false),
      messages_(comm, buckets_) {}

GradientReducer::~GradientReducer() { listen_to({}); }

void GradientReducer::follow_buffers() {
  // Hooks and measurements belong to the old buckets.
  if (!buckets_.rebuild(buffers_)) return;
  ready_tracker_.rebuild(buckets_.assignment().buckets());
  hooks_.reset();
  if (follows_backward_) set_hooks();
  overlap_is_faster_ = false;
  overlap_trial_.start(may_overlap() && options_.overlap == "auto" ? 1 : 0);
}

void GradientReducer::set_hooks() {
  hooks_ = std::make_unique<GradientHooks>(params_, [this](int64_t i) { on_gradient(i); });
}

void GradientReducer::follow_backward(bool follows) {
  if (std::exchange(follows_backward_, follows) == follows) return;
  check(!is_under_way(), "follow_backward() while gradients are under way");
  listen_to({});
  hooks_.reset();
  if (follows && buckets_.assignment().size() > 0) set_hooks();
}

void GradientReducer::set_kept(size_t buffer, std::span<const uint8_t> bits, Dropped dropped) {
  check(!is_under_way(), "new masks while gradients are under way");
  follow_buffers();
  buckets_.set_kept(buffers_, buffer, bits, dropped);
}

bool GradientReducer::is_sharded() {
  follow_buffers();
  return buckets_.assignment().is_sharded();
}

void GradientReducer::begin_changes() {
  if (buckets_.assignment().is_shared()) comm_.barrier();
}

std::vector<ParamShard> GradientReducer::local_shards() {
  check(!is_armed_, "owned() while gradients are under way");
  follow_buffers();
  return buckets_.assignment().local_shards();
}

bool GradientReducer::may_overlap() const {
  // All conditions are equal on all ranks; overlaps_now() adds measured ones, which are agreed.
  if (options_.overlap == "false" || is_overlap_off_) return false;
  if (buckets_.assignment().is_shared()) return false;  // nothing to send
  if (comm_.is_asynchronous() && options_.overlap != "true" && !buckets_.travel_whole())
    return false;
  return options_.overlap == "true" ||
         (comm_.world_size() > 1 && buckets_.assignment().size() > 1 &&
          buckets_.dense_bytes() >= kLeastOverlapBytes);
}

bool GradientReducer::overlaps_now() const {
  if (!may_overlap()) return false;
  // Packing is measured first, since overlap depends on it.
  if (overlap_trial_.is_running() && !buckets_.is_measuring()) return overlap_trial_.takes_second();
  return options_.overlap == "true" || overlap_is_faster_;
}

void GradientReducer::prepare_for_backward(const StepRequests& requests) {
  check(!is_under_way(), "prepare_for_backward() twice without finish()");
  requests_ = requests;
  // The callbacks of the last step refer to its graph; none may fire in the new step.
  listen_to({});
  follow_buffers();
  buckets_.begin_step();
  ready_tracker_.begin();
  // True if buckets may overlap in these steps. The trial's state is equal on all ranks.
  const bool is_tried = overlap_trial_.is_running() || overlap_is_faster_;
  // All ranks must agree on the place of the numbers, so no local condition may enter here.
  bounds_late_ = requests.by_bucket && !requests.squared_grad_norm && may_overlap() &&
                 (options_.overlap == "true" || is_tried) && buckets_.can_arrive_in_turn();
  num_before_numbers_ = bounds_late_ ? num_before_last_to_come(buckets_.assignment().buckets())
                                     : buckets_.assignment().size();
  begin_ = Clock::now();
  bytes_before_ = comm_.bytes_reduced();
  messages_.begin(overlaps_now(), num_before_numbers_);
  is_armed_ = true;
}

void GradientReducer::follow_graph(const at::Tensor& loss) {
  const bool may_tell = std::any_of(params_.begin(), params_.end(), [](const Param& param) {
    return param.grad_in_place != nullptr;
  });
  if (is_armed_ && messages_.is_beside() && hooks_ != nullptr && may_tell)
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

void GradientReducer::on_gradient(int64_t param) {
  // is_armed_: micro-batches before the last also run backward and must not release buckets.
  if (is_armed_ && ready_tracker_.mark_ready(param)) release_complete();
}

void GradientReducer::release_complete() {
  if (!messages_.is_beside()) return;
  const size_t num_complete = ready_tracker_.num_complete();
  // First the mark, then the release: the communication thread reads the mark.
  buckets_.mark_complete(num_complete);
  messages_.release(num_complete);
}

at::Tensor GradientReducer::numbers_of(const LocalStepStats& share) const {
  const at::Tensor share_V = to_numbers(share, comm_.device());
  if (!bounds_late_) return share_V;
  // Read before any of these buckets is reduced: the bound is that of local gradients.
  const double largest = buckets_.largest_from(num_before_numbers_);
  return at::cat({share_V, at::full({1}, largest, share_V.options())});
}

GlobalStepStats GradientReducer::totals_of(const LocalStepStats& share) const {
  GlobalStepStats totals = from_numbers(messages_.sums_V(), share.counts.size());
  totals.own_work_s = share.work_s;
  totals.is_complete = totals.num_samples >= share.expected_samples.value_or(0);
  check(totals.num_samples > 0 || !totals.is_complete, "a step without samples on any rank");
  return totals;
}

/// Returns the same on all ranks that ask: true if finish() would find a finite step once the late
/// means have arrived.
bool GradientReducer::may_update_early(const LocalStepStats& share) const {
  const GlobalStepStats totals = totals_of(share);
  return totals.finite() && totals.num_skipped == 0 && totals.counts_nothing() &&
         buckets_.are_finite() && messages_.sums_V()[-1].item<double>() < kSafeBound;
}

GlobalStepStats GradientReducer::finish(const LocalStepStats& share, const EarlyUpdate& update) {
  check(is_armed_, "finish() without prepare_for_backward()");
  check(share.votes < (1U << kNumVotes), "a vote beyond kNumVotes");
  is_armed_ = false;
  finish_start_ = Clock::now();
  const std::shared_ptr<StreamMark> computed = comm_.mark();
  messages_.send(numbers_of(share), share.gradient_divisor, ready_tracker_.num_complete() > 0,
                 [&] { return may_update_early(share); });
  const Read read = read_sums(share, computed, update);
  GlobalStepStats totals = totals_of(share);
  totals.compute_s = read.compute_s;
  totals.update_s = read.update_s;
  totals.wait_s = seconds_since(finish_start_) - read.compute_s - read.update_s;
  // The last buckets are late: return now, finish_late() completes the totals.
  if (messages_.num_left() > 0) {
    late_divisor_ = share.gradient_divisor;
    early_s_ = seconds_since(begin_);
    late_wait_s_ = 0;
    return totals;
  }
  take_means(share.gradient_divisor.value_or(std::max<int64_t>(1, totals.num_samples)), read,
             &totals);
  conclude(seconds_since(begin_), &totals);
  return totals;
}

LateShards GradientReducer::late_shards() {
  LateShards late{.regions = {}, .wait_for_next = [this] { wait_for_late(); }};
  const std::vector<Bucket>& buckets = buckets_.assignment().buckets();
  for (size_t i = buckets.size() - messages_.num_left(); i < buckets.size(); ++i)
    late.regions.push_back({buckets[i].buffer, buckets[i].begin_E, buckets[i].end_E});
  return late;
}

void GradientReducer::wait_for_late() {
  const trace::Span span("wait for all-reduce");
  const auto start = Clock::now();
  messages_.take_next();
  late_wait_s_ += seconds_since(start);
}

void GradientReducer::finish_late(GlobalStepStats* totals) {
  if (!late_divisor_) return;
  check(messages_.num_left() == 0, "finish_late() before all gradients were waited for");
  // Only the check is left: wait_for_late() has unpacked every bucket.
  check(buckets_.take_means(*late_divisor_), "sums within a bound are finite");
  late_divisor_.reset();
  totals->late_wait_s = late_wait_s_;
  totals->wait_s += late_wait_s_;
  conclude(early_s_ + late_wait_s_, totals);
  double late_s = 0;
  for (size_t i = num_before_numbers_; i < totals->bucket_s.size(); ++i)
    late_s += totals->bucket_s[i];
  totals->overlapped_s += std::max(0.0, late_s - late_wait_s_);
}

void GradientReducer::conclude(double seconds, GlobalStepStats* totals) {
  totals->bytes_reduced = comm_.bytes_reduced() - bytes_before_;
  buckets_.count(finish_start_, totals);
  name_missing();
  learn(seconds);
}

/// Waits for the sums: the only wait of the host in a step on a GPU. Means and their check are
/// enqueued first, if the divisor is known and nothing is sharded.
GradientReducer::Read GradientReducer::read_sums(const LocalStepStats& share,
                                                 const std::shared_ptr<StreamMark>& computed,
                                                 const EarlyUpdate& update) {
  Read read;
  if (computed != nullptr) {
    if (share.gradient_divisor && !buckets_.assignment().is_sharded()) {
      // Enqueue everything before the wait, so that the device has no gap between kernels.
      const at::Tensor largest_1 = buckets_.begin_means(*share.gradient_divisor);
      const at::Tensor sums_V = messages_.sums_V();
      messages_.add_number(largest_1);
      if (update) {
        const auto start = Clock::now();
        update(found_inf(sums_V, largest_1, share.counts.size()));
        read.update_s = seconds_since(start);
      }
    }
    const trace::Span span("wait for the GPU");
    computed->wait_on_host();
    read.compute_s = std::max(0.0, seconds_since(finish_start_) - read.update_s);
  }
  const std::optional<double> largest = messages_.read_sums();
  if (largest) read.are_finite = std::isfinite(*largest);
  return read;
}

void GradientReducer::take_means(int64_t divisor, const Read& read, GlobalStepStats* totals) {
  totals->gradients_finite = read.are_finite ? *read.are_finite : buckets_.take_means(divisor);
  Superaccumulator squares;
  if (requests_.squared_grad_norm)
    add_gradient_squares(comm_, buffers_, buckets_.assignment().local_shards(),
                         buckets_.assignment().row_E_by_param(), &squares);
  if (buckets_.assignment().is_sharded()) {
    int64_t num_bad_ranks = totals->gradients_finite ? 0 : 1;
    if (requests_.squared_grad_norm)
      join_over_ranks(comm_, &squares, {&num_bad_ranks, 1});
    else
      num_bad_ranks = sum_of(comm_, num_bad_ranks);
    totals->gradients_finite = num_bad_ranks == 0;
  }
  if (requests_.squared_grad_norm) totals->squared_grad_norm = squares.value();
}

GatherTotals GradientReducer::gather_values() {
  check(!is_under_way(), "gather_values() while gradients are under way");
  const auto start = Clock::now();
  GatherTotals totals;
  buckets_.gather(buffers_, &totals);
  totals.gather_s = seconds_since(start);
  return totals;
}

void GradientReducer::sum(const at::Tensor& numbers) {
  check(!is_under_way(), "sum() while gradients are under way");
  const at::Tensor there = numbers.to(comm_.device());
  comm_.all_reduce(there, ReduceOp::kSum)->wait();
  numbers.copy_(copy_to_host(comm_, there));
}

void GradientReducer::learn(double seconds) {
  if (buckets_.is_measuring()) {
    // The new packing changes messages and balance, so overlap is measured again.
    if (buckets_.learn() && may_overlap() && options_.overlap == "auto") overlap_trial_.start(1);
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
    log::warning("dist", fmt::format("backward gave no gradient to {}: taken as zeros (said once)",
                                     fmt::join(names, ", ")));
}

}  // namespace lockstep::dist
