#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

/// A tensor [num_elements] for memory that lives as long as the run and is walked as a whole each
/// step: on CPUs the system is asked to put it on pages of 2 MiB, of which the processor knows the
/// places (madvise(2), MADV_HUGEPAGE; where the system has none, nothing changes). Not filled.
at::Tensor empty_on_large_pages(int64_t num_elements, const at::TensorOptions& options);
/// The same, zeros.
at::Tensor zeros_on_large_pages(int64_t num_elements, const at::TensorOptions& options);

}  // namespace lockstep
