// Functions of base on tensors that call LibTorch: memory, views and digests.
#include "base/tensors/tensor_memory.h"

#include <cstdint>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <sys/mman.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/tensors/state_list.h"

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

at::Tensor pinned_for(at::Device device, const at::Tensor& values) {
  return device.is_cuda() && values.is_cpu() ? values.pin_memory() : values;
}

at::Tensor to_device(const at::Tensor& values, at::Device device) {
  if (!values.is_cpu() || !device.is_cuda()) return values.to(device);
  // LibTorch reuses pinned memory only after the copies from it are done.
  return pinned_for(device, values).to(device, values.scalar_type(), /*non_blocking=*/true);
}

void copy_to_device(const at::Tensor& values, const at::Tensor& to) {
  to.copy_(pinned_for(to.device(), values), /*non_blocking=*/true);
}

// Not owning: the tensor is a view of the number.
at::Tensor view_of(int64_t* number) { return at::from_blob(number, {}, at::kLong); }

// Separate from base/digest.cpp, so that code that reads only texts links without LibTorch.
Sha256& Sha256::add(const at::Tensor& tensor) {
  check(tensor.is_cpu(), "a digest needs a CPU tensor");
  const at::Tensor whole = tensor.detach().contiguous();
  return add({static_cast<const char*>(whole.const_data_ptr()), whole.nbytes()});
}

}  // namespace lockstep
