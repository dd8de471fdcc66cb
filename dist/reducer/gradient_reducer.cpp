#include "dist/reducer/gradient_reducer.h"

#include <algorithm>
#include <string>

#include <ATen/ops/cat.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/log.h"
#include "dist/agree.h"
#include "dist/bucket/squared_grad_norm.h"
#include "dist/copy_to_host.h"

namespace lockstep::dist {
namespace {

/// Below this, in all, waking a thread costs more than it could hide: `auto` does not even try.
constexpr int64_t kLeastOverlapBytes = 1 << 20;

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
      was_named_(params.size(), false) {}

void GradientReducer::follow_buffers() {
  if (!buckets_.rebuild(buffers_)) return;
  ready_tracker_.rebuild(buckets_.buckets());
  hooks_.reset();
  hooks_ = std::make_unique<GradientHooks>(params_, [this](int64_t i) { on_gradient(i); });
  overlap_is_faster_ = false;
  overlap_trial_.start(may_overlap() && options_.overlap == "auto" ? 1 : 0);
}

void GradientReducer::set_kept(size_t buffer, std::span<const uint8_t> bits) {
  check(!is_armed_, "new masks while gradients are under way");
  follow_buffers();
  buckets_.set_kept(buffers_, buffer, bits);
}

bool GradientReducer::is_sharded() {
  follow_buffers();
  return buckets_.is_sharded();
}

void GradientReducer::begin_changes() {
  if (buckets_.is_shared()) comm_.barrier();
}

std::vector<ParamShard> GradientReducer::local_shards() {
  check(!is_armed_, "owned() while gradients are under way");
  follow_buffers();
  return buckets_.local_shards();
}

bool GradientReducer::may_overlap() const {
  if (hooks_ == nullptr || options_.overlap == "false") return false;
  if (buckets_.is_shared()) return false;                                   // nothing to send
  if (comm_.is_asynchronous() && options_.overlap != "true") return false;  // no GPU has run it
  return options_.overlap == "true" || (comm_.world_size() > 1 && buckets_.buckets().size() > 1 &&
                                        buckets_.dense_bytes() >= kLeastOverlapBytes);
}

bool GradientReducer::overlaps_now() const {
  if (!may_overlap()) return false;
  if (overlap_trial_.is_running() && !buckets_.is_measuring()) return overlap_trial_.takes_second();
  return options_.overlap == "true" || overlap_is_faster_;
}

void GradientReducer::prepare_for_backward(const StepRequests& requests) {
  check(!is_armed_, "prepare_for_backward() twice without finish()");
  requests_ = requests;
  follow_buffers();
  buckets_.begin_step(requests.gradient_factor);
  ready_tracker_.begin();
  finds_bound_ = buckets_.lacks_bound();  // then nothing can be sent before all is complete
  overlaps_ = overlaps_now() && !finds_bound_;
  if (overlaps_ && thread_ == nullptr)
    thread_ = std::make_unique<CommunicationThread>([this](size_t i) { buckets_.launch(i); });
  begin_ = Clock::now();
  bytes_before_ = comm_.bytes_reduced();
  if (overlaps_) thread_->begin();
  is_armed_ = true;
}

void GradientReducer::on_gradient(int64_t param) {
  if (!is_armed_ || !ready_tracker_.mark_ready(param) || !overlaps_) return;
  const size_t num_complete = ready_tracker_.num_complete();
  buckets_.mark_complete(num_complete);
  thread_->release(num_complete);
}

void GradientReducer::launch_all(std::optional<int64_t> divisor) {
  if (overlaps_ && buckets_.can_pack_beside() && ready_tracker_.num_complete() > 0)
    launch_beside(divisor);
  for (size_t bucket = overlaps_ ? thread_->end() : 0; bucket < buckets_.buckets().size(); ++bucket)
    buckets_.launch(bucket);
  buckets_.wait();
}

/// While the thread sends the rest, this one prepares what it will send and unpacks what it sent.
void GradientReducer::launch_beside(std::optional<int64_t> divisor) {
  const size_t num_buckets = buckets_.buckets().size();
  thread_->release(num_buckets);
  for (size_t bucket = 0; bucket < num_buckets; ++bucket) buckets_.pack(bucket);
  for (size_t bucket = 0; bucket < num_buckets; ++bucket) {
    if (!thread_->wait_for(bucket + 1)) return;  // end() tells why
    if (divisor) buckets_.unpack(bucket, *divisor);
  }
}

GlobalStepStats GradientReducer::finish(const LocalStepStats& share) {
  check(is_armed_, "finish() without prepare_for_backward()");
  check(share.votes < (1U << kNumVotes), "a vote beyond kNumVotes");
  is_armed_ = false;
  const auto start = Clock::now();
  const WireScale scale_before = buckets_.scale();
  if (finds_bound_) find_bound();
  launch_all(share.gradient_divisor);
  at::Tensor share_V = to_numbers(share, comm_.device());
  if (buckets_.scales()) share_V = at::cat({share_V, buckets_.largest()});
  comm_.all_reduce(share_V, ReduceOp::kSum)->wait_on_host();

  GlobalStepStats totals = from_numbers(share_V);
  totals.own_work_s = share.work_s;
  totals.wait_s = seconds_since(start);
  totals.is_complete = totals.num_samples >= share.expected_samples.value_or(0);
  check(totals.num_samples > 0 || !totals.is_complete, "a step without samples on any rank");
  take_means(share.gradient_divisor.value_or(std::max<int64_t>(1, totals.num_samples)), &totals);
  if (!totals.is_complete)
    buckets_.set_scale(scale_before);
  else if (buckets_.scales())
    buckets_.follow_bound(share_V[-1].item<double>());
  if (totals.finite()) buckets_.keep_errors();
  totals.bytes_reduced = comm_.bytes_reduced() - bytes_before_;
  buckets_.count(start, &totals);
  name_missing();
  learn();
  return totals;
}

void GradientReducer::take_means(int64_t divisor, GlobalStepStats* totals) {
  totals->gradients_finite = buckets_.take_means(divisor);
  Superaccumulator squares;
  if (requests_.squared_grad_norm)
    add_gradient_squares(comm_, buffers_, buckets_.local_shards(), buckets_.row_E_by_param(),
                         &squares);
  if (buckets_.is_sharded()) {
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
  check(!is_armed_, "gather_values() while gradients are under way");
  const auto start = Clock::now();
  GatherTotals totals;
  buckets_.gather(buffers_, &totals);
  totals.gather_s = seconds_since(start);
  return totals;
}

void GradientReducer::sum(const at::Tensor& numbers) {
  check(!is_armed_, "sum() while gradients are under way");
  const at::Tensor there = numbers.to(comm_.device());
  comm_.all_reduce(there, ReduceOp::kSum)->wait();
  numbers.copy_(copy_to_host(comm_, there));
}

/// In a message that no step's bytes count.
void GradientReducer::find_bound() {
  const int64_t before = comm_.bytes_reduced();
  buckets_.find_bound();
  bytes_before_ += comm_.bytes_reduced() - before;
}

void GradientReducer::learn() {
  if (finds_bound_) return;  // a step unlike the others
  if (buckets_.is_measuring()) {
    // Other messages, another balance of waiting and computing: overlap is measured anew.
    if (buckets_.learn() && may_overlap() && options_.overlap == "auto") overlap_trial_.start(1);
  } else if (overlap_trial_.is_running()) {
    const auto verdict = overlap_trial_.add_step({{.alone_s = seconds_since(begin_)}}, comm_);
    if (verdict) overlap_is_faster_ = verdict->front();
  }
}

void GradientReducer::name_missing() {
  if (hooks_ == nullptr || comm_.rank() != 0 || !ready_tracker_.any()) return;
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
