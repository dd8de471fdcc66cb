#pragma once

#include <cstdint>
#include <vector>

#include <c10/util/FunctionRef.h>

#include "base/bits/simd.h"
#include "base/tensors/param_shard.h"
#include "base/tensors/params.h"
#include "optim/kernels/packed_mask.h"
#include "optim/kernels/update_kernels.h"

namespace lockstep::optim {

/// Values and gradients of one region, float32 on the CPU, [R] each.
struct RegionData {
  int64_t num_elements = 0;
  float* values_R = nullptr;
  float* grads_R = nullptr;
};

/// Where a region's slots stand, [R], or [K] in the region's order where packed; null: no such
/// slot.
struct SlotData {
  float* first = nullptr;
  float* second = nullptr;
};

/// Float32 on the CPU.
bool takes_kernels(const FlatBuffer& buffer);
/// Of such a buffer.
RegionData data_of(const FlatBuffer& buffer, const ParamShard& region);
SlotData data_of(const std::vector<at::Tensor>& slots);

/// A rule on `num` elements that stand close together, of which the first has this place among the
/// slots.
using UpdateBlock =
    c10::function_ref<void(int64_t num, float* values, float* grads, int64_t begin)>;

/// One update of a whole region, or of its kept elements alone, in one pass. Of these, values and
/// gradients are packed in small blocks, the rule is computed on what stands close together, and
/// its results are put where they belong; pruned elements stay as they are. Uses ATen's threads; an
/// element's bits depend neither on them, nor on the path, nor on where the element stands.
void update_dense(const RegionData& data, UpdateBlock update);
void update_kept(const PackedMask& kept, const RegionData& data, UpdateBlock update,
                 SimdPath path = fastest_simd_path());

/// The same for a rule with its numbers; `kept` empty: dense.
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
