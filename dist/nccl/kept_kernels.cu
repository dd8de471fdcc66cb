// The kernels of packed gradients, compiled by nvcc: all they do to an item is defined in kept_items.h,
// which tests compile too.
#include "dist/nccl/kept_kernels.h"

#include <algorithm>

namespace lockstep::dist::nccl {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = int64_t{1} << 20;  // each thread then has several items

/// The items of this thread: first, first + stride, ...
__device__ int64_t first_item() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ int64_t stride() { return int64_t{gridDim.x} * blockDim.x; }

template <typename T>
__global__ void pack_kernel(MaskView mask, int64_t num_items, const T* items_E, T* packed_K) {
  for (int64_t item = first_item(); item < num_items; item += stride())
    pack_item(mask, item, items_E, packed_K);
}

template <typename T>
__global__ void unpack_kernel(MaskView mask, int64_t num_items, const T* packed_K, T* items_E) {
  for (int64_t item = first_item(); item < num_items; item += stride())
    unpack_item(mask, item, packed_K, items_E);
}

unsigned num_blocks(int64_t num_items) {
  return static_cast<unsigned>(std::min((num_items + kThreads - 1) / kThreads, kMostBlocks));
}

template <typename T>
cudaError_t pack(const MaskView& mask, int64_t num_items, const void* items_E, void* packed_K,
                 cudaStream_t stream) {
  pack_kernel<<<num_blocks(num_items), kThreads, 0, stream>>>(
      mask, num_items, static_cast<const T*>(items_E), static_cast<T*>(packed_K));
  return cudaGetLastError();
}

template <typename T>
cudaError_t unpack(const MaskView& mask, int64_t num_items, const void* packed_K, void* items_E,
                   cudaStream_t stream) {
  unpack_kernel<<<num_blocks(num_items), kThreads, 0, stream>>>(
      mask, num_items, static_cast<const T*>(packed_K), static_cast<T*>(items_E));
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_pack_kept(const MaskView& mask, int64_t num_items, int item_bytes,
                             const void* items_E, void* packed_K, cudaStream_t stream) {
  if (num_items == 0) return cudaSuccess;
  switch (item_bytes) {
    case 2:
      return pack<uint16_t>(mask, num_items, items_E, packed_K, stream);
    case 4:
      return pack<uint32_t>(mask, num_items, items_E, packed_K, stream);
    case 8:
      return pack<uint64_t>(mask, num_items, items_E, packed_K, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t launch_unpack_kept(const MaskView& mask, int64_t num_items, int item_bytes,
                               const void* packed_K, void* items_E, cudaStream_t stream) {
  if (num_items == 0) return cudaSuccess;
  switch (item_bytes) {
    case 2:
      return unpack<uint16_t>(mask, num_items, packed_K, items_E, stream);
    case 4:
      return unpack<uint32_t>(mask, num_items, packed_K, items_E, stream);
    case 8:
      return unpack<uint64_t>(mask, num_items, packed_K, items_E, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace lockstep::dist::nccl
