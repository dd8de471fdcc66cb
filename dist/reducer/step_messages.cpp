// The jobs of a step are the buckets and, at num_before_numbers_, the step statistics. The order of
// jobs is the order of messages, equal on all ranks. So jobs run either all on one thread, or first
// on the communication thread and then, after its end(), on the caller.
#include "dist/reducer/step_messages.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "base/error.h"
#include "dist/copy_to_host.h"

namespace lockstep::dist {

void StepMessages::begin(bool beside, size_t num_before_numbers) {
  check(num_left_ == 0, "a step begins while buckets of the one before are on their way");
  is_beside_ = beside;
  num_before_numbers_ = num_before_numbers;
  if (!beside) return;
  // Created at first use: without overlap there is no thread.
  if (thread_ == nullptr)
    thread_ = std::make_unique<CommunicationThread>([this](size_t job) { run(job); });
  thread_->begin();
}

void StepMessages::release(size_t num_complete) {
  // The numbers exist only after backward. So the thread must not pass their place before send().
  if (is_beside_) thread_->release(std::min(num_complete, num_before_numbers_));
}

void StepMessages::run(size_t job) {
  if (job != num_before_numbers_) return buckets_.launch(bucket_of(job));
  // The numbers may follow only completed buckets: an asynchronous bucket is ordered first.
  buckets_.wait();
  comm_.all_reduce(numbers_V_, ReduceOp::kSum)->wait();
}

void StepMessages::add_number(const at::Tensor& number_1) {
  const at::Tensor both_V = at::cat({numbers_V_, number_1});
  has_number_ = true;
  // Pinned memory, so that the copy does not block the host.
  host_V_ = at::empty(both_V.sizes(),
                      at::TensorOptions(both_V.scalar_type()).pinned_memory(both_V.is_cuda()));
  host_V_.copy_(both_V, /*non_blocking=*/true);
  copied_ = comm_.mark();
}

std::optional<double> StepMessages::read_sums() {
  if (!std::exchange(has_number_, false)) {
    numbers_V_ = copy_to_host(comm_, numbers_V_);
    return std::nullopt;
  }
  comm_.settle();
  std::exchange(copied_, nullptr)->wait_on_host();
  const int64_t num_numbers = host_V_.numel() - 1;
  numbers_V_ = host_V_.narrow(0, 0, num_numbers);
  return host_V_[num_numbers].item<double>();
}

void StepMessages::send(at::Tensor numbers_V, std::optional<int64_t> divisor, bool has_begun,
                        const std::function<bool()>& may_leave) {
  numbers_V_ = std::move(numbers_V);
  divisor_ = divisor;
  if (is_beside_ && has_begun && buckets_.can_pack_beside() && follow_thread(may_leave)) return;
  // Without work in backward, waking the thread would cost more than sending here.
  for (size_t job = is_beside_ ? thread_->end() : 0; job <= num_buckets(); ++job) run(job);
}

/// Packs what the thread will send and unpacks what it has sent, while the thread sends. False if
/// the caller must end the thread's round: all is sent, or a job has thrown.
bool StepMessages::follow_thread(const std::function<bool()>& may_leave) {
  const size_t num_jobs = num_buckets() + 1;
  // The order of jobs stays; only the release is at once.
  thread_->release(num_jobs);
  for (size_t bucket = 0; bucket < num_buckets(); ++bucket) buckets_.pack(bucket);
  for (size_t job = 0; job < num_jobs; ++job) {
    if (!thread_->wait_for(job + 1)) return false;
    if (job != num_before_numbers_) {
      if (divisor_) buckets_.unpack(bucket_of(job), *divisor_);
    } else if (divisor_ && job < num_buckets() && may_leave()) {
      num_left_ = num_buckets() - job;
      return true;
    }
  }
  return false;
}

void StepMessages::take_next() {
  check(num_left_ > 0, "all buckets are there");
  const size_t bucket = num_buckets() - num_left_;
  // Late buckets follow the numbers, so this is job bucket + 1. end() throws what stopped it.
  if (!thread_->wait_for(bucket + 2)) thread_->end();
  // This thread unpacks, while the communication thread sends the next bucket.
  buckets_.unpack(bucket, *divisor_);
  if (--num_left_ == 0) thread_->end();
}

}  // namespace lockstep::dist
