#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/params.h"
#include "dist/communicator.h"
#include "dist/reducer/bucket_reducer.h"
#include "dist/reducer/buckets.h"

/// Overlap of reduction and backward: hooks, complete buckets, the communication thread, and the
/// order of a step's messages.
namespace lockstep::dist {

/// Notifies a listener when backward has added a parameter's gradient to its `grad`. Also finds
/// parameters whose gradient has one source only.
///
/// The listener runs on the autograd thread that added the gradient, once per parameter and
/// backward pass. Calls for different parameters may be concurrent. Exceptions of the listener
/// leave backward(). Parameters that require no gradient at construction are ignored. Construct and
/// destroy while no backward runs.
class GradientHooks {
 public:
  /// Function that receives the parameter's index in the table.
  using Listener = std::function<void(int64_t param)>;

  GradientHooks(const ParamTable& params, Listener on_gradient);
  ~GradientHooks();

  /// Returns the parameters (indices, ascending) whose gradient has exactly one incoming edge in
  /// the graph of `root`. For these, what the one layer has written during backward is final.
  /// Excluded are weights that are used twice or that also enter a loss, and layers whose graph is
  /// built only during backward.
  std::vector<int64_t> with_one_source(const at::Tensor& root) const;

  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

 private:
  struct Hook;

  Listener on_gradient_;
  std::vector<Hook> hooks_;
};

/// Tracks the gradients that the current backward pass has completed, and so the complete buckets.
///
/// Call rebuild() and begin() while no backward runs. mark_written() and mark_ready() may come from
/// any of its threads; for one parameter, one call after another. Any thread may call the rest.
/// Memory that a thread wrote before it marked is visible to every thread that sees the bucket as
/// complete.
class ReadyTracker {
 public:
  /// Replaces the buckets. They are in sending order.
  void rebuild(const std::vector<Bucket>& buckets);
  /// Marks all gradients as missing, for a new step.
  void begin();

  /// Marks this parameter's gradient as complete. True if num_complete() grew. A parameter in no
  /// bucket does not count. Throws Error(kConfig) if it was already marked, since its bucket may be
  /// in transit.
  bool mark_ready(int64_t param);

  /// Marks the first num_elements elements of this parameter's gradient as final. That completes
  /// its buckets up to there, if they hold no other parameter. True if num_complete() grew. Throws
  /// like mark_ready().
  bool mark_written(int64_t param, int64_t num_elements);

  /// Number of leading complete buckets; buckets after a gap do not count.
  size_t num_complete() const;

  /// Parameters in buckets whose gradient is missing, ascending.
  std::vector<int64_t> missing() const;
  /// True if any gradient is complete.
  bool any() const;

 private:
  /// A bucket with elements of a parameter, and the number of leading elements that complete this
  /// part.
  struct Part {
    size_t bucket;
    int64_t end_E;
  };
  struct Param {
    std::vector<Part> parts;  ///< in memory order
    size_t num_there = 0;     ///< number of leading complete parts
    std::atomic<bool> is_there = false;
  };

  /// Returns null if no element of the parameter is in a bucket.
  Param* find(int64_t param);
  bool mark_parts(Param& param, int64_t num_elements);

  /// Arrays by parameter and by bucket; not vectors, since atomics cannot move.
  std::unique_ptr<Param[]> params_;
  size_t num_params_ = 0;
  std::vector<int32_t> num_awaited_;
  std::unique_ptr<std::atomic<int32_t>[]> num_missing_;

  mutable std::mutex mutex_;
  size_t num_complete_ = 0;  ///< guarded by mutex_
};

/// Thread that executes jobs 0, 1, 2, ... of a round in order, each after its release.
///
///   begin();  release(2);  release(5);  ...  num_done = end();   // the caller executes the rest
///
/// The thread sleeps while no released job is left. One thread at a time calls begin(), wait_for()
/// and end(); any thread calls release(). A job sees all writes made before its release. After
/// end() the caller sees all writes of the jobs.
class CommunicationThread {
 public:
  /// Objects that `job` uses must outlive this. `job` runs only between begin() and end().
  explicit CommunicationThread(std::function<void(size_t)> job);
  /// Waits for the running job.
  ~CommunicationThread();
  CommunicationThread(const CommunicationThread&) = delete;
  CommunicationThread& operator=(const CommunicationThread&) = delete;

  void begin();
  /// Allows jobs 0 to num_jobs, exclusive. A smaller number than before has no effect.
  void release(size_t num_jobs);
  /// Waits until `num_jobs` jobs are done, which must have been released. False if one has thrown.
  bool wait_for(size_t num_jobs);
  /// Ends the round: waits for the running job and starts no other. Returns the number of jobs
  /// done, or throws what a job threw (no job starts after that one).
  size_t end();

 private:
  void run();
  bool may_start() const { return is_open_ && !fault_ && num_done_ < num_released_; }

  const std::function<void(size_t)> job_;
  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  // guarded by mutex_
  bool is_open_ = false;
  bool is_busy_ = false;
  bool must_end_ = false;
  size_t num_released_ = 0;
  size_t num_done_ = 0;
  std::exception_ptr fault_;

  std::thread thread_;  // last: it uses the members above
};

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
