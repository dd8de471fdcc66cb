#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace lockstep::recal {

/// base/bits/bit_mask.h over tensors. kept_bits: uint8 [num_mask_bytes(n)] on the CPU for a tensor
/// of n items, row-major, whatever the tensor's strides and device are.

/// All kept.
at::Tensor new_kept_bits(int64_t num_items);

/// The bits as a tensor of this shape on the CPU: uint8, 1 = kept.
at::Tensor kept_flags(const at::Tensor& kept_bits, at::IntArrayRef sizes);

/// The values in row-major order on the CPU: the same memory if it is there, else a copy.
at::Tensor row_major_on_cpu(const at::Tensor& values);

/// kept_bits &= values that are not zero.
void drop_zeros(const at::Tensor& values, const at::Tensor& kept_bits);

/// Zeroes the pruned values, in place. `device_mask` (bool, true = pruned, the values' shape and
/// device) is used if defined, else made for values that are not contiguous on the CPU.
void zero_pruned_values(const at::Tensor& values, const at::Tensor& kept_bits,
                        const at::Tensor& device_mask);

/// Pruned values that are not zero.
int64_t count_pruned_nonzeros(const at::Tensor& values, const at::Tensor& kept_bits);

}  // namespace lockstep::recal
