#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>

#include "dist/communication_thread.h"
#include "dist/communicator.h"
#include "dist/reducer/bucket_reducer.h"

namespace lockstep::dist {

/// Messages of one step in their fixed order: the buckets, and the step statistics (the numbers)
/// after `num_before_numbers` of them (docs/decisions/0013-one-order-of-messages.md).
///
///   begin(beside, num_before_numbers);  release(2);  release(5);  ...  // during backward
///   send(numbers_V, divisor, has_begun, may_leave);
///   while (num_left() > 0) take_next();
///
/// Collective: send() and take_next(), with the same num_before_numbers on all ranks. Ranks may
/// differ in whether they use a thread, and in its progress. One thread at a time; release() from
/// any.
class StepMessages {
 public:
  StepMessages(Communicator& comm, BucketReducer& buckets) : comm_(comm), buckets_(buckets) {}

  /// Begins a step, after BucketReducer::begin_step(). beside: a communication thread sends the
  /// released buckets.
  void begin(bool beside, size_t num_before_numbers);
  bool is_beside() const { return is_beside_; }
  /// Declares buckets 0 to num_complete, exclusive, as complete. Those after the numbers wait for
  /// send().
  void release(size_t num_complete);

  /// Sends all that is left, when all gradients are complete. numbers_V become sums over the ranks,
  /// sums_V(). has_begun: the thread had something to send during backward. Then it also sends the
  /// rest, while this thread packs, and unpacks with `divisor` if that is known. Otherwise the
  /// caller sends, and num_left() is 0 afterwards.
  ///
  /// may_leave is called once the numbers have arrived, if buckets follow them. If it returns true,
  /// send() returns at once and leaves these buckets to take_next().
  void send(at::Tensor numbers_V, std::optional<int64_t> divisor, bool has_begun,
            const std::function<bool()>& may_leave);
  /// Adds a number on the device, [1], for read_sums(). Call it after send(). Enqueues the copy of
  /// all numbers to the host here, so that work the caller enqueues next does not delay the copy.
  void add_number(const at::Tensor& number_1);
  /// Copies the sums to the host and waits for them. Call it after send(). Returns the number of
  /// add_number(), which comes in the same copy; nullopt without one.
  std::optional<double> read_sums();
  const at::Tensor& sums_V() const { return numbers_V_; }

  /// Number of trailing buckets that are still in transit.
  size_t num_left() const { return num_left_; }
  /// Waits for the first of them and turns its sums into means.
  void take_next();

 private:
  size_t num_buckets() const { return buckets_.assignment().size(); }
  /// Returns the bucket of a job. Every job except that of the numbers has one.
  size_t bucket_of(size_t job) const { return job < num_before_numbers_ ? job : job - 1; }
  void run(size_t job);
  bool follow_thread(const std::function<bool()>& may_leave);

  Communicator& comm_;
  BucketReducer& buckets_;
  bool is_beside_ = false;
  size_t num_before_numbers_ = 0;
  size_t num_left_ = 0;
  bool has_number_ = false;  ///< a number of add_number() follows the numbers
  at::Tensor host_V_;        ///< pinned host copy of both
  std::shared_ptr<StreamMark> copied_;
  at::Tensor numbers_V_;
  std::optional<int64_t> divisor_;
  std::unique_ptr<CommunicationThread> thread_;  ///< made when first needed; last: it uses the
                                                 ///< members above
};

}  // namespace lockstep::dist
