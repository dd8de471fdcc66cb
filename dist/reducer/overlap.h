#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/params.h"
#include "dist/reducer/buckets.h"

/// Overlap of reduction and backward: hooks, complete buckets, the communication thread, and the
/// order of a step's messages.
namespace lockstep::dist {

/// Notifies a listener when backward has added a parameter's gradient to its `grad`. Also finds
/// parameters whose gradient has one source only.
///
/// The listener runs on the autograd thread that added the gradient, once per parameter and
/// backward pass; calls may be concurrent. Its exceptions leave backward(). Parameters that require
/// no gradient at construction are ignored. Construct and destroy while no backward runs.
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
/// Call rebuild() and begin() while no backward runs. Any thread may call the rest; for one
/// parameter, one mark after another. Memory that a thread wrote before it marked is visible to
/// every thread that sees the bucket as complete.
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

  std::vector<Param> params_;         ///< replaced as a whole, since atomics cannot move
  std::vector<int32_t> num_awaited_;  ///< by bucket
  std::vector<std::atomic<int32_t>> num_missing_;  ///< by bucket

  mutable std::mutex mutex_;
  size_t num_complete_ = 0;  ///< guarded by mutex_
};

/// Thread that executes jobs 0, 1, 2, ... of a round in order, each after its release.
///
///   begin();  release(2);  release(5);  ...  num_done = end();   // the caller executes the rest
///
/// One thread at a time calls begin(), wait_for() and end(); any thread calls release(). A job sees
/// all writes made before its release. After end() the caller sees all writes of the jobs.
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

}  // namespace lockstep::dist
