// MemoryCalls over CUDA and LibTorch's caching allocator.
#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "base/error.h"
#include "dist/nccl/cuda/cuda_calls.h"
#include "dist/nccl/gpu_memory.h"

namespace lockstep::dist::nccl {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;
constexpr size_t kAllPools = 0;  // StatType::AGGREGATE

/// LibTorch's caching allocator.
class CudaMemory final : public MemoryCalls {
 public:
  explicit CudaMemory(int device_index) : index_(static_cast<c10::DeviceIndex>(device_index)) {
    make_cuda_calls(device_index)->require_usable();
    at::globalContext().lazyInitDevice(at::kCUDA);  // initialises the allocator
  }

  Bytes bytes() override {
    const c10::cuda::CUDAGuard on_device(index_);
    size_t free = 0, total = 0;
    if (const cudaError_t result = cudaMemGetInfo(&free, &total); result != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      throw Error(ExitCode::kUnavailable, "gpu",
                  fmt::format("cudaMemGetInfo: {}", cudaGetErrorString(result)));
    }
    return {.free = static_cast<int64_t>(free), .total = static_cast<int64_t>(total)};
  }
  void give_back() override {
    allocator::emptyCache();
    allocator::setMemoryFraction(1, index_);
  }
  int64_t taken() override {
    return allocator::getDeviceStats(index_).reserved_bytes[kAllPools].current;
  }
  GpuMemoryUse use() override {
    const auto stats = allocator::getDeviceStats(index_);
    return {.allocated = stats.allocated_bytes[kAllPools].current,
            .reserved = stats.reserved_bytes[kAllPools].current,
            .peak = stats.allocated_bytes[kAllPools].peak,
            .num_ooms = stats.num_ooms};
  }
  void set_fraction(double fraction) override { allocator::setMemoryFraction(fraction, index_); }
  void reserve(int64_t num_bytes) override {
    const c10::cuda::CUDAGuard on_device(index_);
    // Allocate and free: the memory stays in the allocator's cache.
    allocator::raw_delete(allocator::raw_alloc(static_cast<size_t>(num_bytes)));
  }

 private:
  const c10::DeviceIndex index_;
};

}  // namespace

std::unique_ptr<MemoryCalls> make_memory_calls(int device_index) {
  return std::make_unique<CudaMemory>(device_index);
}

}  // namespace lockstep::dist::nccl
