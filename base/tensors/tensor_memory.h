#pragma once

#include <ATen/core/Tensor.h>

/// Memory of tensors: large pages, copies to a device, page-locked memory.
namespace lockstep {

/// Returns an uninitialized tensor [num_elements]. It is for memory that lives as long as the run
/// and is read entirely in each step. On CPUs it requests pages of 2 MiB, which need fewer TLB
/// entries (madvise(2), MADV_HUGEPAGE). If the system has none, nothing changes.
at::Tensor empty_on_large_pages(int64_t num_elements, const at::TensorOptions& options);
/// Returns such a tensor with zeros.
at::Tensor zeros_on_large_pages(int64_t num_elements, const at::TensorOptions& options);

/// Returns the values on `device`, the same tensor if they are there already. From the host to a
/// GPU they go through page-locked memory. The copy is enqueued on the calling thread's stream. The
/// host does not wait and may change `values` at once, unless they were in page-locked memory
/// before.
at::Tensor to_device(const at::Tensor& values, at::Device device);

/// Copies into existing memory in the same way; `to` has the values' shape and type.
void copy_to_device(const at::Tensor& values, const at::Tensor& to);

/// Returns the values in page-locked memory, from which to_device() takes them without a copy on
/// the host. Returns the same tensor if no GPU is used, or if they are page-locked already.
at::Tensor pinned_for(at::Device device, const at::Tensor& values);

}  // namespace lockstep
