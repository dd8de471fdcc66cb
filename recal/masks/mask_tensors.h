#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace lockstep::recal {

/// Functions of base/bits/bit_mask.h for tensors. kept_bits: uint8 [num_mask_bytes(n)] on the CPU
/// for a tensor of n elements. Bits are in row-major order, whatever the tensor's strides and
/// device are.

/// Returns the bits of a mask that keeps everything.
at::Tensor new_kept_bits(int64_t num_items);

/// Expands the bits to a tensor of this shape on the CPU: uint8, 1 = kept.
at::Tensor kept_flags(const at::Tensor& kept_bits, at::IntArrayRef sizes);

/// Returns the values in row-major order on the CPU: the same memory if possible, else a copy.
at::Tensor row_major_on_cpu(const at::Tensor& values);

/// Clears the bits of zero values: kept_bits &= (values != 0).
void drop_zeros(const at::Tensor& values, const at::Tensor& kept_bits);

/// Zeroes the pruned values, in place. Values on a device or with other strides use `device_mask`
/// (bool, true = pruned, the values' shape and device). If it is undefined, one is made.
void zero_pruned_values(const at::Tensor& values, const at::Tensor& kept_bits,
                        const at::Tensor& device_mask);

/// Number of pruned values that are not zero.
int64_t count_pruned_nonzeros(const at::Tensor& values, const at::Tensor& kept_bits);

}  // namespace lockstep::recal
