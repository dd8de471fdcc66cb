#pragma once

#include <cstdint>
#include <vector>

#include <c10/util/FunctionRef.h>

#include "base/simd/simd.h"
#include "base/tensors/param_info.h"
#include "base/tensors/params.h"
#include "optim/optimizer_state.h"
#include "optim/update_kernels.h"

namespace lockstep::optim {

/// Values and gradients of one region, float32 on the CPU, [R] each.
struct RegionData {
  int64_t num_elements = 0;
  float* values_R = nullptr;
  float* grads_R = nullptr;
};

/// Addresses of a region's slots: [R], or [K] in the region's order if packed. Null: no such slot.
struct SlotData {
  float* first = nullptr;
  float* second = nullptr;
};

/// True if the buffer is float32 on the CPU.
bool takes_kernels(const FlatBuffer& buffer);
/// Returns the addresses of a region of such a buffer.
RegionData data_of(const FlatBuffer& buffer, const ParamShard& region);
SlotData data_of(const std::vector<at::Tensor>& slots);

/// Rule applied to `num` contiguous elements. begin: index of the first one among the slots.
using UpdateBlock =
    c10::function_ref<void(int64_t num, float* values, float* grads, int64_t begin)>;

/// Updates a whole region, or its kept elements only, in one pass. Kept elements are packed in
/// small blocks, updated there and written back; pruned elements do not change. Uses ATen's
/// threads. The bits of an element depend neither on threads, nor on the SIMD path, nor on its
/// position.
void update_dense(const RegionData& data, UpdateBlock update);
void update_kept(const PackedMask& kept, const RegionData& data, UpdateBlock update,
                 SimdPath path = fastest_simd_path());

/// Updates a region by a rule with its parameters. Empty `kept`: all elements.
template <typename Rule>
void update_region(const PackedMask& kept, const RegionData& data, const SlotData& slots,
                   const rules::WeightDecay<float>& decay, const Rule& rule,
                   SimdPath path = fastest_simd_path()) {
  const auto block = [&, kernel = update_kernels(path).of<Rule>()](int64_t num, float* values,
                                                                   float* grads, int64_t begin) {
    kernel(num, values, grads, slots.first != nullptr ? slots.first + begin : nullptr,
           slots.second != nullptr ? slots.second + begin : nullptr, decay, rule);
  };
  if (kept.empty())
    update_dense(data, block);
  else
    update_kept(kept, data, block, path);
}

}  // namespace lockstep::optim
