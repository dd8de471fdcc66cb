#include "recal/masks/mask_n_of_m.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/bits/bit_mask.h"
#include "base/error.h"
#include "recal/masks/magnitude_kernels.h"
#include "recal/masks/weight_shape.h"

namespace lockstep::recal {
namespace {

/// A group's selection is one 64-bit word.
constexpr int64_t kMaxGroup = 64;

/// Returns the bits of the first num_first of m elements in the order (key, index). Pruned elements
/// have key -1 and are left out. kM: upper limit of m. The loops are unrolled: with constant m all
/// indexes are constants, which is 1.6 times as fast for 2:4.
template <int kM, typename Key>
uint64_t first_of(const Key* keys, int64_t m, int64_t num_first) {
  // A rank sort: num_before[i] counts the elements that come before i.
  std::array<int64_t, kM> num_before{};
#pragma GCC unroll 8
  for (int64_t i = 1; i < m; ++i)
#pragma GCC unroll 8
    for (int64_t j = 0; j < i; ++j) {
      const auto j_is_first = static_cast<int64_t>(keys[j] <= keys[i]);
      num_before[static_cast<size_t>(i)] += j_is_first;
      num_before[static_cast<size_t>(j)] += 1 - j_is_first;
    }
  uint64_t first = 0;
#pragma GCC unroll 8
  for (int64_t i = 0; i < m; ++i)
    first |=
        static_cast<uint64_t>((num_before[static_cast<size_t>(i)] < num_first) & (keys[i] >= 0))
        << i;
  return first;
}

template <typename Bits>
struct Walk {
  using Key = std::make_signed_t<Bits>;

  const Bits* items;
  const uint8_t* kept;
  WeightShape shape;
  int64_t m;
  int64_t num_first;

  /// Handles the group that begins at this element; its neighbours are num_positions apart. kM: m
  /// as a constant, or 0 if m is only known at run time.
  template <int kM>
  void add_group(int64_t first_item, Prunable* out) const {
    const int64_t num_neighbours = kM > 0 ? kM : m;
    constexpr int kMost = kM == 0 ? static_cast<int>(kMaxGroup) : kM;
    std::array<Key, kMost> keys;
    int64_t num_kept = 0;
#pragma GCC unroll 8
    for (int64_t j = 0; j < num_neighbours; ++j) {
      const int64_t item = first_item + j * shape.num_positions;
      const bool is_here = is_kept(kept, item);
      keys[static_cast<size_t>(j)] = is_here ? static_cast<Key>(magnitude(items[item])) : Key{-1};
      num_kept += static_cast<int64_t>(is_here);
    }
    // Pruned elements have the smallest keys, so they already take places among the num_first.
    out->num_pruned += std::min(num_neighbours - num_kept, num_first);
    put(first_of<kMost>(keys.data(), num_neighbours, num_first), first_item, out->bits.data());
  }

  /// Sets the bits of a group's chosen neighbours.
  void put(uint64_t chosen, int64_t first_item, uint8_t* bits) const {
    if (shape.num_positions == 1) {  // neighbours in memory: whole bytes at a time
      uint8_t* byte = bits + (first_item >> 3);
      *byte = static_cast<uint8_t>(*byte | (chosen << (first_item & 7)));
      for (chosen >>= 8 - (first_item & 7); chosen != 0; chosen >>= 8) {
        ++byte;
        *byte = static_cast<uint8_t>(*byte | chosen);
      }
      return;
    }
    for (; chosen != 0; chosen &= chosen - 1) {
      const int64_t item = first_item + std::countr_zero(chosen) * shape.num_positions;
      bits[item >> 3] = static_cast<uint8_t>(bits[item >> 3] | (1U << (item & 7)));
    }
  }

  template <int kM>
  void add_all(Prunable* out) const {
    const int64_t num_group_rows = shape.num_outputs * shape.num_inputs / m;
    for (int64_t row = 0; row < num_group_rows; ++row)
      for (int64_t position = 0; position < shape.num_positions; ++position)
        add_group<kM>(row * m * shape.num_positions + position, out);
  }
};

template <typename Bits>
void add_all(const MaskKind& kind, const at::Tensor& weight, const uint8_t* kept, Prunable* out) {
  const Walk<Bits> walk{static_cast<const Bits*>(weight.const_data_ptr()), kept,
                        WeightShape(weight.sizes()), kind.m, kind.m - kind.n};
  // Common patterns (1:2, 2:4, 4:8) get a loop with a constant group size.
  if (kind.m == 2) return walk.template add_all<2>(out);
  if (kind.m == 4) return walk.template add_all<4>(out);
  if (kind.m == 8) return walk.template add_all<8>(out);
  walk.template add_all<0>(out);
}

}  // namespace

Prunable prunable_n_of_m(const MaskKind& kind, const at::Tensor& weight, const uint8_t* kept) {
  check(kind.m <= kMaxGroup, "N:M has at most 64 neighbours");
  Prunable result;
  result.bits.resize(static_cast<size_t>(num_mask_bytes(weight.numel())));
  if (weight.element_size() == 2) add_all<uint16_t>(kind, weight, kept, &result);
  if (weight.element_size() == 4) add_all<uint32_t>(kind, weight, kept, &result);
  if (weight.element_size() == 8) add_all<uint64_t>(kind, weight, kept, &result);
  return result;
}

}  // namespace lockstep::recal
