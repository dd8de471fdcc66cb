#pragma once

#include <cstdint>
#include <map>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

namespace lockstep::dist {

/// Memory in which messages are put together, one after another: as large as the largest of each
/// type, made at first need. What take() gives holds until the next take() of that type.
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
