#pragma once

#include <cstdint>

#include "base/tensors/param_shard.h"
#include "base/tensors/params.h"
#include "optim/packed_update.h"

namespace lockstep::optim {

inline float* floats_of(const at::Tensor& tensor) { return tensor.mutable_data_ptr<float>(); }

/// Where a region's values and gradients stand. Of float32 buffers on the CPU.
inline RegionData data_of(const FlatBuffer& buffer, const ParamShard& region) {
  return {.values_R = floats_of(buffer.values_E) + region.begin_E,
          .grads_R = buffer.grads_E.const_data_ptr<float>() + region.begin_E};
}

/// A dense region as ATen's fused kernels compute it: whole vectors, and the few elements behind
/// them, which ATen would round in another way and which therefore have kernels of ours. So no bit
/// depends on where a region ends. Other dtypes and devices are ATen's alone.
struct DenseSplit {
  static constexpr int64_t kVector = 16;  ///< floats; a multiple of every x86-64 path's

  DenseSplit(const FlatBuffer& buffer, const ParamShard& region_)
      : region(region_),
        num_rest(buffer.values_E.is_cpu() && buffer.values_E.scalar_type() == at::kFloat
                     ? region_.num_elements() % kVector
                     : 0),
        num_even(region_.num_elements() - num_rest) {}

  at::Tensor even(const at::Tensor& flat_E) const {
    return flat_E.narrow(0, region.begin_E, num_even);
  }
  RegionData rest(const FlatBuffer& buffer) const {
    return data_of(buffer, {region.buffer, region.begin_E + num_even, region.end_E});
  }

  ParamShard region;
  int64_t num_rest, num_even;
};

}  // namespace lockstep::optim
