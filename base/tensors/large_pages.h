#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

/// Returns an uninitialized tensor [num_elements]. It is for memory that lives as long as the run
/// and is read entirely in each step. On CPUs it requests pages of 2 MiB, which need fewer TLB
/// entries (madvise(2), MADV_HUGEPAGE). If the system has none, nothing changes.
at::Tensor empty_on_large_pages(int64_t num_elements, const at::TensorOptions& options);
/// Returns such a tensor with zeros.
at::Tensor zeros_on_large_pages(int64_t num_elements, const at::TensorOptions& options);

}  // namespace lockstep
