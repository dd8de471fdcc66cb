#include "base/tensors/large_pages.h"

#include <sys/mman.h>

#include <cstdint>

#include <ATen/ops/empty.h>

namespace lockstep {
namespace {

constexpr uintptr_t kPageBytes = uintptr_t{2} << 20;

/// Only pages that lie in the memory as a whole: what is beside it is not ours.
void ask_for_large_pages(void* memory, size_t num_bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t first = (begin + kPageBytes - 1) / kPageBytes * kPageBytes;
  const uintptr_t last = (begin + num_bytes) / kPageBytes * kPageBytes;
  if (first < last) (void)madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

}  // namespace

at::Tensor empty_on_large_pages(int64_t num_elements, const at::TensorOptions& options) {
  at::Tensor tensor = at::empty({num_elements}, options);
  if (tensor.is_cpu()) ask_for_large_pages(tensor.mutable_data_ptr(), tensor.nbytes());
  return tensor;
}

at::Tensor zeros_on_large_pages(int64_t num_elements, const at::TensorOptions& options) {
  return empty_on_large_pages(num_elements, options).zero_();
}

}  // namespace lockstep
