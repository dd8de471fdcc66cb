#include "optim/update_region.h"

#include <algorithm>
#include <array>

#include <ATen/Parallel.h>

#include "base/simd/bit_mask.h"

namespace lockstep::optim {
// A masked update packs a block's kept values and gradients, applies the rule there, and writes the
// results back. Slots stay packed for the whole region, so begin_K finds a chunk's slots. All paths
// compute each element alone: its bits do not depend on the packing.
namespace {

/// Updates a chunk in blocks: packs values and gradients, applies the rule, writes results back.
void walk(const PackedMask::Chunk& chunk, const RegionData& data, SimdPath path,
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
    kernels.put_kept(block, bits, num_elements, values);
    begin_K += block.num_kept;
  }
}

/// Updates a chunk with few kept elements. Reads and writes only their own cache lines.
void walk_sparse(const PackedMask::Chunk& chunk, const RegionData& data, UpdateBlock update) {
  std::array<uint32_t, PackedMask::kChunkElements / kItemsOfOneKept + kPlaceSlack> places;
  const int64_t num_kept = find_kept(chunk.bits, chunk.num_elements, places.data());
  float* const values = data.values_R + chunk.begin_R;
  float* const grads = data.grads_R + chunk.begin_R;
  PackedBlock block;
  for (int64_t done = 0; done < num_kept; done += block.num_kept) {
    block.num_kept = std::min(kBlock, num_kept - done);
    const uint32_t* const here = places.data() + done;
    for (int64_t i = 0; i < block.num_kept; ++i) {
      block.values[i] = values[here[i]];
      block.grads[i] = grads[here[i]];
    }
    update(block.num_kept, block.values.data(), block.grads.data(), chunk.begin_K + done);
    for (int64_t i = 0; i < block.num_kept; ++i) values[here[i]] = block.values[i];
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

void update_kept(const PackedMask& kept, const RegionData& data, UpdateBlock update,
                 SimdPath path) {
  // Chunks are independent: kept elements before each chunk were counted once.
  at::parallel_for(0, kept.num_chunks(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index) {
      const PackedMask::Chunk chunk = kept.chunk(index);
      if (is_sparse(chunk.num_kept, chunk.num_elements))
        walk_sparse(chunk, data, update);
      else
        walk(chunk, data, path, update);
    }
  });
}

}  // namespace lockstep::optim
