#include "optim/kernels/update_region.h"

#include <algorithm>

#include <ATen/Parallel.h>

namespace lockstep::optim {
namespace {

void walk(const PackedMask::Chunk& chunk, const RegionData& data, bool into_grads, SimdPath path,
          UpdateBlock update) {
  const UpdateKernels& kernels = update_kernels(path);
  PackedBlock block;
  int64_t begin_K = chunk.begin_K;
  for (int64_t first = 0; first < chunk.num_elements; first += kBlock) {
    const int64_t num_elements = std::min(kBlock, chunk.num_elements - first);
    const uint8_t* bits = chunk.bits + first / 8;
    float* values = data.values_R + chunk.begin_R + first;
    float* grads = data.grads_R + chunk.begin_R + first;
    kernels.pack(values, grads, bits, num_elements, block);
    if (block.num_kept == 0) continue;
    update(block.num_kept, block.values.data(), block.grads.data(), begin_K);
    if (into_grads)
      kernels.put_kept(block, block.grads, bits, num_elements, grads);
    else
      kernels.put_kept(block, block.values, bits, num_elements, values);
    begin_K += block.num_kept;
  }
}

}  // namespace

bool takes_kernels(const FlatBuffer& buffer) {
  return buffer.values_E.is_cpu() && buffer.values_E.scalar_type() == at::kFloat;
}

RegionData data_of(const FlatBuffer& buffer, const ParamShard& region) {
  return {.num_elements = region.num_elements(),
          .values_R = buffer.values_E.mutable_data_ptr<float>() + region.begin_E,
          .grads_R = buffer.grads_E.mutable_data_ptr<float>() + region.begin_E};
}

SlotData data_of(const std::vector<at::Tensor>& slots) {
  const auto floats = [&](size_t slot) {
    return slot < slots.size() ? slots[slot].mutable_data_ptr<float>() : nullptr;
  };
  return {.first = floats(0), .second = floats(1)};
}

void update_dense(const RegionData& data, UpdateBlock update) {
  at::parallel_for(0, data.num_elements, kGrain, [&](int64_t begin, int64_t end) {
    update(end - begin, data.values_R + begin, data.grads_R + begin, begin);
  });
}

void update_kept(const PackedMask& kept, const RegionData& data, bool into_grads,
                 UpdateBlock update, SimdPath path) {
  at::parallel_for(0, kept.num_chunks(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index)
      walk(kept.chunk(index), data, into_grads, path, update);
  });
}

}  // namespace lockstep::optim
