#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "dist/bucket/buckets.h"

namespace lockstep::dist {

/// Which gradients of the backward pass under way are there, and so which buckets are complete.
///
/// rebuild() and begin() while no backward runs; mark_written() and mark_ready() from any of its
/// threads, of one parameter one after another; the rest from any thread. What a thread wrote
/// before it marked is visible to whoever sees the bucket as complete.
class ReadyTracker {
 public:
  /// Other buckets from now on, in the order in which they will be sent.
  void rebuild(const std::vector<Bucket>& buckets);
  /// No gradient is there.
  void begin();

  /// The gradient of this parameter is there. True if num_complete() grew. A parameter in no bucket
  /// does not count. Throws Error(kConfig) if it was there already: then its bucket may be on its
  /// way.
  bool mark_ready(int64_t param);

  /// The first elements of this parameter's gradient are what they will be. Completes those of its
  /// buckets that hold no others, as far as num_elements reaches. True if num_complete() grew.
  /// Throws as mark_ready().
  bool mark_written(int64_t param, int64_t num_elements);

  /// Buckets 0 to this one, exclusive, are complete: those behind a gap wait for it.
  size_t num_complete() const;

  /// Parameters in buckets whose gradient is not there, ascending.
  std::vector<int64_t> missing() const;
  /// True if any gradient is there.
  bool any() const;

 private:
  /// A bucket with elements of a parameter, and how many from its front must be there for it.
  struct Part {
    size_t bucket;
    int64_t end_E;
  };
  struct Param {
    std::vector<Part> parts;  ///< in memory order
    size_t num_there = 0;     ///< of the parts, the first ones
    std::atomic<bool> is_there = false;
  };

  /// Null where none of its elements is in a bucket.
  Param* find(int64_t param);
  bool mark_parts(Param& param, int64_t num_elements);

  /// By parameter and by bucket. Arrays, since atomics do not move.
  std::unique_ptr<Param[]> params_;
  size_t num_params_ = 0;
  std::vector<int32_t> num_awaited_;
  std::unique_ptr<std::atomic<int32_t>[]> num_missing_;

  mutable std::mutex mutex_;
  size_t num_complete_ = 0;  ///< guarded by mutex_
};

}  // namespace lockstep::dist
