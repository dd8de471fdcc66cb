#pragma once

#include <cstdint>

namespace lockstep::dist {

/// How a process takes the memory of its GPU.
struct GpuMemoryOptions {
  double fraction = 1;    ///< of the GPU's memory that LibTorch may take at most, in (0, 1]
  bool at_start = false;  ///< all of it at once, but room for small tensors; else as it is needed
};

/// Bytes of one GPU.
struct GpuMemoryFacts {
  int64_t total = 0;
  int64_t free = 0;      ///< before this process took any
  int64_t limit = 0;     ///< that LibTorch may take
  int64_t reserved = 0;  ///< of that, taken at the start: all but room for small tensors
};

/// What LibTorch's allocator tells of one GPU of this process.
struct GpuMemoryUse {
  int64_t allocated = 0;  ///< bytes in tensors
  int64_t reserved = 0;   ///< bytes taken from the GPU
  int64_t peak = 0;       ///< most bytes in tensors so far
  int64_t num_ooms = 0;   ///< allocations that failed
};

}  // namespace lockstep::dist
