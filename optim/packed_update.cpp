#include "optim/packed_update.h"

#include <algorithm>
#include <array>

#include <ATen/Parallel.h>

#include "base/error.h"
#include "optim/update_kernels.h"

namespace lockstep::optim {
namespace {

/// Elements of which the packed gradients, values and changes stay in the first cache.
constexpr int64_t kBlock = 2048;

struct Blocks {
  alignas(64) std::array<float, kBlock + kSlack> grads, values, changes;
};

/// Calls compute(num_kept, grads, values, changes, begin_K) for each block of the chunk's kept
/// elements, and adds what it leaves in `changes` times `factor`. `values` are filled only where
/// the rule decays them, else null.
template <typename Compute>
void walk(const PackedMask::Chunk& chunk, const RegionData& data, bool decays, float factor,
          SimdPath path, const Compute& compute) {
  const UpdateKernels& kernels = update_kernels(path);
  Blocks blocks;
  int64_t begin_K = chunk.begin_K;
  for (int64_t first = 0; first < chunk.num_elements; first += kBlock) {
    const int64_t num_elements = std::min(kBlock, chunk.num_elements - first);
    const uint8_t* bits = chunk.bits + first / 8;
    float* values = data.values_R + chunk.begin_R + first;
    const int64_t num_kept =
        kernels.pack(data.grads_R + chunk.begin_R + first, bits, num_elements, blocks.grads.data());
    if (num_kept == 0) continue;
    if (decays) kernels.pack(values, bits, num_elements, blocks.values.data());
    compute(num_kept, blocks.grads.data(), decays ? blocks.values.data() : nullptr,
            blocks.changes.data(), begin_K);
    kernels.add_kept(blocks.changes.data(), bits, num_elements, factor, values);
    begin_K += num_kept;
  }
}

template <typename Compute>
void walk_all(const PackedMask& kept, const RegionData& data, bool decays, float factor,
              SimdPath path, const Compute& compute) {
  at::parallel_for(0, kept.num_chunks(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index)
      walk(kept.chunk(index), data, decays, factor, path, compute);
  });
}

void add(int64_t num, const float* changes, float factor, float* values) {
  for (int64_t i = 0; i < num; ++i) values[i] = std::fma(factor, changes[i], values[i]);
}

}  // namespace

void packed_adam(const PackedMask& kept, const RegionData& data, float* m_K, float* v_K,
                 const AdamNumbers& by, SimdPath path) {
  const auto compute = [&, adam = update_kernels(path).adam](int64_t num_kept, const float* grads,
                                                             const float* values, float* changes,
                                                             int64_t begin_K) {
    adam(num_kept, grads, values, m_K + begin_K, v_K + begin_K, changes, by);
  };
  walk_all(kept, data, by.weight_decay != 0, 1, path, compute);
}

void packed_momentum(const PackedMask& kept, const RegionData& data, float* momentum_K,
                     const MomentumNumbers& by, SimdPath path) {
  const auto compute = [&, momentum = update_kernels(path).momentum](
                           int64_t num_kept, const float* grads, const float* values,
                           float* changes, int64_t begin_K) {
    momentum(num_kept, grads, values, momentum_K + begin_K, changes, by);
  };
  walk_all(kept, data, by.weight_decay != 0, by.minus_rate, path, compute);
}

void adam_of_rest(int64_t num, const RegionData& data, float* m_R, float* v_R,
                  const AdamNumbers& by) {
  check(num <= kMaxRest, "the rest is less than a few vectors");
  std::array<float, kMaxRest> changes{};
  update_kernels(fastest_simd_path())
      .adam(num, data.grads_R, by.weight_decay != 0 ? data.values_R : nullptr, m_R, v_R,
            changes.data(), by);
  add(num, changes.data(), 1, data.values_R);
}

void momentum_of_rest(int64_t num, const RegionData& data, float* momentum_R,
                      const MomentumNumbers& by) {
  check(num <= kMaxRest, "the rest is less than a few vectors");
  std::array<float, kMaxRest> changes{}, zeros{};
  update_kernels(fastest_simd_path())
      .momentum(num, data.grads_R, by.weight_decay != 0 ? data.values_R : nullptr,
                momentum_R != nullptr ? momentum_R : zeros.data(), changes.data(), by);
  add(num, changes.data(), by.minus_rate, data.values_R);
}

}  // namespace lockstep::optim
