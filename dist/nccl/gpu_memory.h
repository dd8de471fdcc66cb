#pragma once

#include <cstdint>
#include <memory>

#include "dist/gpu_memory.h"

namespace lockstep::dist::nccl {

/// The calls that divide the memory of one GPU of this process; cuda/cuda_memory.cpp is the real
/// table, tests have one of their own. They throw Error(kUnavailable) with CUDA's reason, or what
/// LibTorch's allocator throws (c10::Error).
class MemoryCalls {
 public:
  virtual ~MemoryCalls() = default;
  struct Bytes {
    int64_t free = 0, total = 0;  ///< of the GPU, all processes together
  };
  virtual Bytes bytes() = 0;
  /// As at the process' start, but for tensors that are still there: what LibTorch's allocator
  /// keeps of an earlier run is freed, and its limit taken back.
  virtual void give_back() = 0;
  /// Bytes that LibTorch's allocator holds in this process.
  virtual int64_t taken() = 0;
  /// What the allocator tells, from any thread.
  virtual GpuMemoryUse use() = 0;
  /// No more than this share of `total` for LibTorch's allocator.
  virtual void set_fraction(double fraction) = 0;
  /// Takes so many bytes into LibTorch's allocator, which gives them out from then on.
  virtual void reserve(int64_t num_bytes) = 0;
};

/// What CUDA, NCCL and cuBLAS take for themselves: left free by GpuMemoryOptions::at_start.
inline constexpr int64_t kBytesBeside = int64_t{512} << 20;
/// Of the share, not taken at the start: LibTorch's allocator puts tensors of less than 1 MiB into
/// blocks of their own, which are not parts of what was reserved.
inline constexpr int64_t kBytesForSmallTensors = int64_t{256} << 20;
/// What the allocator rounds large blocks up to; a share that is none of its multiples would grow
/// beyond the limit.
inline constexpr int64_t kBlockBytes = int64_t{2} << 20;

/// Before the run's first tensor on the GPU. Throws Error(kConfig) if the process holds memory
/// there already, kUnavailable if other processes leave less free than the share that is to be
/// taken now, or if LibTorch's allocator cannot take it.
GpuMemoryFacts set_up_memory(MemoryCalls& gpu, const GpuMemoryOptions& options);

/// The table of CUDA.
std::unique_ptr<MemoryCalls> make_memory_calls(int device_index);

}  // namespace lockstep::dist::nccl
