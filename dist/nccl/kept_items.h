#pragma once

#include <cstdint>

// Compiled by nvcc for the device (kept_kernels.cu) and by the host's compiler for tests: the work
// of one thread on one item. Depends on no other file.
#ifdef __CUDACC__
#define LOCKSTEP_ON_DEVICE __host__ __device__
#else
#define LOCKSTEP_ON_DEVICE
#endif

namespace lockstep::dist::nccl {

constexpr int64_t kItemsPerWord = 64;

/// A mask in the kernels' form; see DeviceMask (base/tensors/device_backend.h).
struct MaskView {
  const uint64_t* words_W = nullptr;
  const int64_t* before_W = nullptr;  ///< kept items before each word

  LOCKSTEP_ON_DEVICE bool is_kept(int64_t item) const {
    return ((words_W[item / kItemsPerWord] >> (item % kItemsPerWord)) & 1) != 0;
  }
  /// Position of a kept item among the kept ones.
  LOCKSTEP_ON_DEVICE int64_t place_of(int64_t item) const {
    const int64_t word = item / kItemsPerWord;
    const uint64_t below = words_W[word] & ((uint64_t{1} << (item % kItemsPerWord)) - 1);
    return before_W[word] + count(below);
  }

  LOCKSTEP_ON_DEVICE static int64_t count(uint64_t bits) {
#ifdef __CUDA_ARCH__
    return __popcll(bits);
#else
    return __builtin_popcountll(bits);
#endif
  }
};

/// Work of one thread on one item. T: an unsigned integer of the item's width, so that bits are
/// preserved.
template <typename T>
LOCKSTEP_ON_DEVICE void pack_item(const MaskView& mask, int64_t item, const T* items_E,
                                  T* packed_K) {
  if (mask.is_kept(item)) packed_K[mask.place_of(item)] = items_E[item];
}

template <typename T>
LOCKSTEP_ON_DEVICE void unpack_item(const MaskView& mask, int64_t item, const T* packed_K,
                                    T* items_E) {
  items_E[item] = mask.is_kept(item) ? packed_K[mask.place_of(item)] : T{0};
}

}  // namespace lockstep::dist::nccl
