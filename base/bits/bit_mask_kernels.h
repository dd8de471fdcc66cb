#pragma once

#include <cstdint>

#include "base/bits/simd.h"

namespace lockstep {

/// One implementation of the functions of base/bits/bit_mask.h for items of one width.
struct BitMaskKernels {
  int64_t (*count_kept)(const uint8_t* bits, int64_t num_items);
  void (*keep_nonzero)(const void* items, int64_t num_items, uint8_t* bits);
  void (*zero_pruned)(void* items, const uint8_t* bits, int64_t num_items);
  int64_t (*pack_kept)(const void* items, const uint8_t* bits, int64_t num_items, void* packed);
  int64_t (*unpack_kept)(const void* packed, const uint8_t* bits, int64_t num_items, void* items);
  int64_t (*find_kept)(const uint8_t* bits, int64_t num_items, uint32_t* places);
};

/// Returns the kernels of a path from simd_paths(). item_bytes: 2, 4 or 8; another width is a bug.
const BitMaskKernels& bit_mask_kernels(SimdPath path, int item_bytes);

/// Kernels of each path; Item is uint16_t, uint32_t or uint64_t.
template <typename Item>
const BitMaskKernels& portable_bit_mask_kernels();
template <typename Item>
const BitMaskKernels& avx2_bit_mask_kernels();
template <typename Item>
const BitMaskKernels& avx512_bit_mask_kernels();

}  // namespace lockstep
