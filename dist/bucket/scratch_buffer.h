#pragma once

#include <cstdint>
#include <map>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

namespace lockstep::dist {

/// Reusable memory for messages: for each type as large as the largest one, allocated at first use.
/// A tensor from take() is valid until the next take() of that type.
class ScratchBuffer {
 public:
  at::Tensor take(int64_t num_items, const at::TensorOptions& options) {
    at::Tensor& scratch = buffers_[c10::typeMetaToScalarType(options.dtype())];
    if (!scratch.defined() || scratch.numel() < num_items)
      scratch = at::empty({num_items}, options);
    return scratch.narrow(0, 0, num_items);
  }

 private:
  std::map<at::ScalarType, at::Tensor> buffers_;
};

}  // namespace lockstep::dist
