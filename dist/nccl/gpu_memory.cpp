// Applies section `gpu` to LibTorch's allocator: a limit, and memory reserved at the start.
#include "dist/nccl/gpu_memory.h"

#include <algorithm>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::dist::nccl {
namespace {

int64_t mib(int64_t num_bytes) { return num_bytes >> 20; }

/// Returns the bytes to reserve, in whole blocks. fraction = 1 means everything free; a smaller
/// share must be free.
int64_t bytes_to_reserve(const GpuMemoryOptions& options, const GpuMemoryFacts& facts) {
  const int64_t available = facts.free - kBytesBeside;
  if (available > 0 && (options.fraction == 1 || facts.limit <= available)) {
    const int64_t large = std::min(facts.limit, available) - kBytesForSmallTensors;
    return std::max<int64_t>(0, large / kBlockBytes * kBlockBytes);
  }
  throw Error(ExitCode::kUnavailable, "gpu",
              fmt::format("the gpu: block allocates {} MiB at the start, but of the GPU's {} MiB "
                          "only {} are free, {} of them reserved for CUDA and NCCL: other "
                          "processes use the GPU; choose other GPUs with CUDA_VISIBLE_DEVICES, a "
                          "smaller gpu.per_process_gpu_memory_fraction, or gpu.allow_growth: true",
                          mib(facts.limit), mib(facts.total), mib(facts.free), mib(kBytesBeside)));
}

GpuMemoryFacts divide(MemoryCalls& gpu, const GpuMemoryOptions& options) {
  // Earlier runs in this process may have left cached memory.
  gpu.give_back();
  if (const int64_t taken = gpu.taken(); taken > 0)
    throw Error(ExitCode::kConfig, "gpu",
                fmt::format("the gpu: block comes too late: this process already uses {} MiB of "
                            "the GPU; apply it before creating the first tensor on the GPU",
                            mib(taken)));
  const MemoryCalls::Bytes bytes = gpu.bytes();
  GpuMemoryFacts facts{
      .total = bytes.total,
      .free = bytes.free,
      .limit = static_cast<int64_t>(options.fraction * static_cast<double>(bytes.total))};
  if (options.at_start) facts.reserved = bytes_to_reserve(options, facts);
  if (options.fraction < 1) gpu.set_fraction(options.fraction);
  if (facts.reserved > 0) gpu.reserve(facts.reserved);
  return facts;
}

}  // namespace

GpuMemoryFacts set_up_memory(MemoryCalls& gpu, const GpuMemoryOptions& options) {
  check(options.fraction > 0 && options.fraction <= 1, "a share of memory is in (0, 1]");
  try {
    return divide(gpu, options);
  } catch (const c10::Error& fault) {
    throw Error(
        ExitCode::kUnavailable, "gpu",
        fmt::format("LibTorch's allocator cannot allocate the GPU's memory as set in the gpu: "
                    "block: {}; choose other GPUs with CUDA_VISIBLE_DEVICES, a smaller "
                    "gpu.per_process_gpu_memory_fraction, or gpu.allow_growth: true",
                    fault.what_without_backtrace()));
  }
}

}  // namespace lockstep::dist::nccl
