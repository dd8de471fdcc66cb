#pragma once

#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::data {

/// Pool of batch tensors that are reused once nobody else holds them. New memory costs more time
/// than filling it. Thread-safe.
class BatchMemory {
 public:
  /// Returns a tensor with undefined values.
  at::Tensor take(at::IntArrayRef shape, at::ScalarType type) const;

 private:
  mutable std::mutex mutex_;
  mutable std::vector<at::Tensor> tensors_;
};

}  // namespace lockstep::data
