#pragma once

#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::data {

/// Tensors of batches, which are given out again once nobody else holds them: fresh memory costs
/// more time than what is written into it. Any thread may take.
class BatchMemory {
 public:
  /// Holds any values.
  at::Tensor take(at::IntArrayRef shape, at::ScalarType type) const;

 private:
  mutable std::mutex mutex_;
  mutable std::vector<at::Tensor> tensors_;
};

}  // namespace lockstep::data
