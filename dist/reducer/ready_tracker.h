#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "dist/bucket/buckets.h"

namespace lockstep::dist {

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

}  // namespace lockstep::dist
