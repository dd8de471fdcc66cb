#pragma once

#include <cstdint>

/// Limit, reservation and statistics of the GPU memory of a process.
namespace lockstep::dist {

/// Rules for the GPU memory that a process takes.
struct GpuMemoryOptions {
  double fraction = 1;    ///< of the GPU's memory that LibTorch may take at most, in (0, 1]
  bool at_start = false;  ///< reserve all of it at once, except room for small tensors
};

/// Bytes of one GPU.
struct GpuMemoryFacts {
  int64_t total = 0;
  int64_t free = 0;      ///< before this process took any
  int64_t limit = 0;     ///< bytes that LibTorch may take
  int64_t reserved = 0;  ///< part of limit taken at the start: all but room for small tensors
};

/// Statistics of LibTorch's allocator for one GPU of this process.
struct GpuMemoryUse {
  int64_t allocated = 0;  ///< bytes in tensors
  int64_t reserved = 0;   ///< bytes taken from the GPU
  int64_t peak = 0;       ///< most bytes in tensors so far
  int64_t num_ooms = 0;   ///< allocations that failed
};

}  // namespace lockstep::dist

namespace lockstep::dist::nccl {

/// Calls that limit and reserve the memory of one GPU of this process. dist/nccl/cuda_calls.cpp has
/// the real implementation; tests have a fake. They throw Error(kUnavailable) with CUDA's reason,
/// or the exceptions of LibTorch's allocator (c10::Error).
class MemoryCalls {
 public:
  virtual ~MemoryCalls() = default;
  struct Bytes {
    int64_t free = 0, total = 0;  ///< of the GPU, for all processes
  };
  virtual Bytes bytes() = 0;
  /// Restores the state of the process' start, except for tensors that still exist: frees the cache
  /// of LibTorch's allocator and removes its limit.
  virtual void give_back() = 0;
  /// Returns the bytes that LibTorch's allocator holds in this process.
  virtual int64_t taken() = 0;
  /// Returns the allocator's statistics; any thread.
  virtual GpuMemoryUse use() = 0;
  /// Limits LibTorch's allocator to this fraction of `total`.
  virtual void set_fraction(double fraction) = 0;
  /// Reserves this many bytes in LibTorch's allocator, for later tensors.
  virtual void reserve(int64_t num_bytes) = 0;
};

/// Memory for CUDA, NCCL and cuBLAS, left free by GpuMemoryOptions::at_start.
inline constexpr int64_t kBytesBeside = int64_t{512} << 20;
/// Part of the limit that is not reserved at the start. LibTorch's allocator puts tensors of less
/// than 1 MiB into separate blocks, which are not parts of the reserved one.
inline constexpr int64_t kBytesForSmallTensors = int64_t{256} << 20;
/// Granularity of the allocator's large blocks. Reserving any other size would be rounded up beyond
/// the limit.
inline constexpr int64_t kBlockBytes = int64_t{2} << 20;

/// Applies the options, before the run's first tensor on the GPU. Throws Error(kConfig) if the
/// process already holds memory there. Throws kUnavailable if other processes leave less free than
/// must be reserved now, or if LibTorch's allocator cannot reserve it.
GpuMemoryFacts set_up_memory(MemoryCalls& gpu, const GpuMemoryOptions& options);

}  // namespace lockstep::dist::nccl
