// Kernels of updates. The rules are plain loops, which the compiler vectorises for each target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/update_kernels.cpp"
#include "base/simd/targets.h"

#include <array>
#include <bit>

#include "base/simd/bit_mask_kernels.h"
#include "base/simd/lanes.h"
#include "optim/rules.h"

HWY_BEFORE_NAMESPACE();

namespace lockstep::optim::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
namespace lanes = lockstep::HWY_NAMESPACE;

template <typename Rule>
void update(int64_t num, float* __restrict values, float* __restrict grads,
            float* __restrict first_slot, float* __restrict second_slot,
            const rules::WeightDecay<float>& decay_, const Rule& rule_) {
  const Rule rule = rule_;  // a copy, which no store below can change
  const rules::WeightDecay<float> decay = decay_;
  for (int64_t i = 0; i < num; ++i) {
    const float w = rules::multiply_add(values[i], decay.minus_share, values[i]);
    const float g = rules::multiply_add(values[i], decay.l2, grads[i]);
    values[i] = rules::apply(rule, w, g, first_slot, second_slot, i);
  }
}

void follow(int64_t num, const float* __restrict weights, float share, float* __restrict averages) {
  for (int64_t i = 0; i < num; ++i) averages[i] += share * (weights[i] - averages[i]);
}

/// True if a block of so few kept elements is packed through a list of their positions. It avoids
/// branches that the processor cannot predict: packing 10 % of 20 M elements then runs at memory
/// speed. Targets without compressed() list every block. pack() and put_kept() choose alike.
[[maybe_unused]] constexpr bool is_listed(int64_t num_kept, int64_t num_elements) {
  return HWY_TARGET == HWY_AVX2 && 4 * num_kept <= num_elements;
}

/// Lists the positions of a block's kept elements. Prefetches a line or two per byte of the mask:
/// the processor drops further prefetches beyond its limit.
void list(const float* values, const float* grads, const uint8_t* bits, int64_t num_elements,
          uint16_t* positions) {
  constexpr int64_t kItemsALine = 16;
  for (int64_t first = 0; first < num_elements; first += 8) {
    if (first % kItemsALine == 0)
      prefetch_line_ahead(values + first), prefetch_line_ahead(grads + first);
    const unsigned kept = bits[first / 8];
#if HWY_TARGET == HWY_SCALAR
    for (unsigned left = kept; left != 0; left &= left - 1)
      *positions++ = static_cast<uint16_t>(first + std::countr_zero(left));
#else
    const hn::FixedTag<uint16_t, 8> tag;
    const auto in_byte = hn::LoadU(hn::FixedTag<uint8_t, 8>(),
                                   reinterpret_cast<const uint8_t*>(&kByteOrders.pack[kept]));
    // Stores 8 positions but advances by the kept ones: PackedBlock::kSlack has room for that.
    hn::StoreU(hn::Add(hn::PromoteTo(tag, in_byte), hn::Set(tag, static_cast<uint16_t>(first))),
               tag, positions);
    positions += std::popcount(kept);
#endif
  }
}

void pack_listed(const float* values, const float* grads, PackedBlock& block) {
  for (int64_t k = 0; k < block.num_kept; ++k) {
    const int64_t position = block.positions[static_cast<size_t>(k)];
    block.values[static_cast<size_t>(k)] = values[position];
    block.grads[static_cast<size_t>(k)] = grads[position];
  }
}

/// Compresses a vector and stores it, by halves if it is large: a 64-byte store that crosses cache
/// lines takes twice as long as two of 32 bytes.
template <typename Tag>
HWY_INLINE void store_compressed(Tag tag, lanes::LaneBits<float> kept, const float* from,
                                 float* out) {
  const auto packed = lanes::compressed(tag, kept, hn::LoadU(tag, from));
#if HWY_CAP_GE512
  const hn::Half<Tag> half;
  hn::StoreU(hn::LowerHalf(half, packed), half, out);
  hn::StoreU(hn::UpperHalf(half, packed), half, out + hn::MaxLanes(half));
#else
  hn::StoreU(packed, tag, out);
#endif
}

/// Packs a block by whole vectors, a rest one by one.
template <typename Tag>
void pack_vectors(Tag tag, const float* values, const float* grads, const uint8_t* bits,
                  int64_t num_elements, PackedBlock& block) {
  float *values_K = block.values.data(), *grads_K = block.grads.data();
  for_words(num_elements, [&](int64_t first, int64_t num, auto is_whole) {
    uint64_t kept = word_of(bits + first / 8, num);
    if (kept == 0) return;
    if constexpr (is_whole) {
      for (int lane = 0; lane < kWordItems; lane += lanes::kNumLanes<float>) {
        const auto here = lanes::part_of<float>(kept, lane);
        store_compressed(tag, here, values + first + lane, values_K);
        store_compressed(tag, here, grads + first + lane, grads_K);
        values_K += std::popcount(here);
        grads_K += std::popcount(here);
      }
    } else {
      for (; kept != 0; kept &= kept - 1) {
        *values_K++ = values[first + std::countr_zero(kept)];
        *grads_K++ = grads[first + std::countr_zero(kept)];
      }
    }
  });
}

void pack(const float* values, const float* grads, const uint8_t* bits, int64_t num_elements,
          PackedBlock& block) {
  block.num_kept = count_set(bits, num_elements);
  if (block.num_kept == 0) return;
  if constexpr (lanes::kHasExpand<float>)
    if (!is_listed(block.num_kept, num_elements))
      return pack_vectors(lanes::Lanes<float>(), values, grads, bits, num_elements, block);
  list(values, grads, bits, num_elements, block.positions.data());
  pack_listed(values, grads, block);
}

/// Unpacks with whole vectors. Masked stores that overlap the next load would delay each load.
template <typename Tag>
void put_vectors(Tag tag, const float* packed_K, const uint8_t* bits, int64_t num_elements,
                 float* dense) {
  for_words(num_elements, [&](int64_t first, int64_t num, auto is_whole) {
    uint64_t kept = word_of(bits + first / 8, num);
    if (kept == 0) return;
    if constexpr (is_whole) {
      for (int lane = 0; lane < kWordItems; lane += lanes::kNumLanes<float>) {
        const auto here = lanes::part_of<float>(kept, lane);
        float* const out = dense + first + lane;
        const auto loaded = hn::LoadU(tag, packed_K);
        hn::StoreU(lanes::expanded(tag, here, loaded, hn::LoadU(tag, out)), tag, out);
        packed_K += std::popcount(here);
      }
    } else {
      for (; kept != 0; kept &= kept - 1) dense[first + std::countr_zero(kept)] = *packed_K++;
    }
  });
}

void put_kept(const PackedBlock& block, const uint8_t* bits, int64_t num_elements, float* dense) {
  if constexpr (lanes::kHasExpand<float>)
    if (!is_listed(block.num_kept, num_elements))
      return put_vectors(lanes::Lanes<float>(), block.values.data(), bits, num_elements, dense);
  for (int64_t k = 0; k < block.num_kept; ++k)
    dense[block.positions[static_cast<size_t>(k)]] = block.values[static_cast<size_t>(k)];
}

template <typename... Rule>
struct Updates {
  static constexpr UpdateKernels::Of<Rule...> kAll{update<Rule>...};
};
constexpr UpdateKernels kKernels{pack, put_kept, follow, rules::OfAll<Updates>::kAll};

}  // namespace
}  // namespace lockstep::optim::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace lockstep::optim {

const UpdateKernels& update_kernels(SimdPath path) { return LOCKSTEP_OF_PATH(path, kKernels); }

}  // namespace lockstep::optim

#endif
