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
/// rebuild() and begin() while no backward runs; mark_ready() from any of its threads; the rest
/// from any thread. What a thread wrote before mark_ready() is visible to whoever sees the bucket
/// as complete.
class ReadyTracker {
 public:
  /// Other buckets from now on, in the order in which they will be sent.
  void rebuild(const std::vector<Bucket>& buckets);
  /// No gradient is there.
  void begin();

  /// The gradient of this parameter is there. True if num_complete() grew. A parameter in no bucket
  /// does not count. Throws Error(kBug) if it was there already: then its bucket may be on its way.
  bool mark_ready(int64_t param);

  /// Buckets 0 to this one, exclusive, are complete: those behind a gap wait for it.
  size_t num_complete() const;

  /// Parameters in buckets whose gradient is not there, ascending.
  std::vector<int64_t> missing() const;
  /// True if any gradient is there.
  bool any() const;

 private:
  struct Param {
    std::vector<size_t> buckets;
    std::atomic<bool> is_there = false;
  };

  /// By parameter and by bucket. Arrays, since atomics do not move.
  std::unique_ptr<Param[]> params_;
  size_t num_params_ = 0;
  std::vector<int32_t> num_awaited_;
  std::unique_ptr<std::atomic<int32_t>[]> num_missing_;

  mutable std::mutex mutex_;
  size_t num_complete_ = 0;  ///< guarded by mutex_
};

}  // namespace lockstep::dist
