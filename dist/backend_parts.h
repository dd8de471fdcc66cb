#pragma once

#include <ATen/core/Tensor.h>

#include "dist/communicator.h"

/// Helpers of the backends; not meant for callers of Communicator.
namespace lockstep::dist {

/// A collective that was complete when its call returned.
class DoneWork final : public Work {
 public:
  void wait() override {}
};

/// Throws Error(kBug) unless the tensor may enter a collective: contiguous, on `device`, of a
/// listed dtype.
void check_values(const at::Tensor& values, at::Device device);

/// Calls check_values() on both, and requires values_NK to have N times as many items of the same
/// dtype.
void check_pieces(const at::Tensor& values_K, const at::Tensor& values_NK, int world_size,
                  at::Device device);

inline int64_t payload_bytes(const at::Tensor& values) {
  return static_cast<int64_t>(values.nbytes());
}

}  // namespace lockstep::dist
