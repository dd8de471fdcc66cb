#pragma once

#include <cstdint>

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
