#include "base/tensors/large_pages.h"

#include <sys/mman.h>

#include <cstdint>

#include <ATen/ops/empty.h>

namespace lockstep {
namespace {

constexpr size_t kPageBytes = size_t{2} << 20;

/// Requests large pages for the part of the memory that covers them entirely; the rest may be
/// shared with others.
void ask_for_large_pages(void* memory, size_t num_bytes) {
  const size_t in_page = reinterpret_cast<uintptr_t>(memory) % kPageBytes;
  // From the first page boundary inside the memory.
  const size_t first = (kPageBytes - in_page) % kPageBytes;
  if (num_bytes < first + kPageBytes) return;
  const size_t whole_bytes = (num_bytes - first) / kPageBytes * kPageBytes;
  (void)madvise(static_cast<char*>(memory) + first, whole_bytes, MADV_HUGEPAGE);
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
