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

/// The messages of one step in their one order: the buckets, and the step's numbers, which come
/// behind `num_before_numbers` of them (docs/decisions/0013-one-order-of-messages.md).
///
///   begin(beside, num_before_numbers);  release(2);  release(5);  ...  // while backward goes on
///   send(numbers_V, divisor, has_begun, may_leave);
///   while (num_left() > 0) take_next();
///
/// Collective: send() and take_next(), with equal places of the numbers. Not how far a rank's
/// thread has come, nor whether it has one. One thread at a time; release() from any.
class StepMessages {
 public:
  StepMessages(Communicator& comm, BucketReducer& buckets) : comm_(comm), buckets_(buckets) {}

  /// A step begins, after BucketReducer::begin_step(). beside: a communication thread sends what
  /// release() gives it.
  void begin(bool beside, size_t num_before_numbers);
  bool is_beside() const { return is_beside_; }
  /// Buckets 0 to num_complete, exclusive, are complete. Those behind the numbers wait for send().
  void release(size_t num_complete);

  /// All gradients are complete: sends all that is left. numbers_V become sums over the ranks,
  /// sums_V(). has_begun: the thread had something to send during backward. Then it sends the rest
  /// too, and this one packs for it, and unpacks with `divisor` where that is known. Else the
  /// caller sends, and num_left() is 0 afterwards.
  ///
  /// may_leave is asked once the numbers are there, if buckets stand behind them: true returns at
  /// once and leaves these to take_next().
  void send(at::Tensor numbers_V, std::optional<int64_t> divisor, bool has_begun,
            const std::function<bool()>& may_leave);
  /// After send(): a number on the device, [1], that read_sums() is to return. The copy of all
  /// numbers to the host is enqueued here: what the caller enqueues next does not delay it.
  void add_number(const at::Tensor& number_1);
  /// After send(): the sums on the host, which waits for them. What add_number() gave comes in the
  /// same copy; nothing if it gave nothing.
  std::optional<double> read_sums();
  const at::Tensor& sums_V() const { return numbers_V_; }

  /// How many buckets, the last ones, are still on their way.
  size_t num_left() const { return num_left_; }
  /// Waits for the first of them and makes its sums means.
  void take_next();

 private:
  size_t num_buckets() const { return buckets_.assignment().size(); }
  /// Of all jobs but the numbers'.
  size_t bucket_of(size_t job) const { return job < num_before_numbers_ ? job : job - 1; }
  void run(size_t job);
  bool follow_thread(const std::function<bool()>& may_leave);

  Communicator& comm_;
  BucketReducer& buckets_;
  bool is_beside_ = false;
  size_t num_before_numbers_ = 0;
  size_t num_left_ = 0;
  bool has_number_ = false;  ///< behind the numbers
  at::Tensor host_V_;        ///< where both are copied to
  std::shared_ptr<StreamMark> copied_;
  at::Tensor numbers_V_;
  std::optional<int64_t> divisor_;
  std::unique_ptr<CommunicationThread> thread_;  ///< made when first needed; last: it uses the rest
};

}  // namespace lockstep::dist
