// The kernels of packed gradients, compiled by nvcc: all they do to an item is defined in
// kept_items.h, which tests compile too.
#include "dist/nccl/kept_kernels.h"

#include <algorithm>

namespace lockstep::dist::nccl {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = int64_t{1} << 20;  // each thread then has several items

/// The items of this thread: first, first + stride, ...
__device__ int64_t first_item() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ int64_t stride() { return int64_t{gridDim.x} * blockDim.x; }

/// Packs the kept items of `from` into `to`, or unpacks them.
template <typename T, bool kPacks>
__global__ void move_kept(MaskView mask, int64_t num_items, const T* from, T* to) {
  for (int64_t item = first_item(); item < num_items; item += stride()) {
    if constexpr (kPacks)
      pack_item(mask, item, from, to);
    else
      unpack_item(mask, item, from, to);
  }
}

template <typename T, bool kPacks>
cudaError_t launch(const MaskView& mask, int64_t num_items, const void* from, void* to,
                   cudaStream_t stream) {
  const int64_t num_blocks = std::min((num_items + kThreads - 1) / kThreads, kMostBlocks);
  move_kept<T, kPacks><<<static_cast<unsigned>(num_blocks), kThreads, 0, stream>>>(
      mask, num_items, static_cast<const T*>(from), static_cast<T*>(to));
  return cudaGetLastError();
}

template <bool kPacks>
cudaError_t launch_any(const MaskView& mask, int64_t num_items, int item_bytes, const void* from,
                       void* to, cudaStream_t stream) {
  if (num_items == 0) return cudaSuccess;
  switch (item_bytes) {
    case 2:
      return launch<uint16_t, kPacks>(mask, num_items, from, to, stream);
    case 4:
      return launch<uint32_t, kPacks>(mask, num_items, from, to, stream);
    case 8:
      return launch<uint64_t, kPacks>(mask, num_items, from, to, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t launch_pack_kept(const MaskView& mask, int64_t num_items, int item_bytes,
                             const void* items_E, void* packed_K, cudaStream_t stream) {
  return launch_any<true>(mask, num_items, item_bytes, items_E, packed_K, stream);
}

cudaError_t launch_unpack_kept(const MaskView& mask, int64_t num_items, int item_bytes,
                               const void* packed_K, void* items_E, cudaStream_t stream) {
  return launch_any<false>(mask, num_items, item_bytes, packed_K, items_E, stream);
}

}  // namespace lockstep::dist::nccl
