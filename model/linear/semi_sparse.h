#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

/// Products of a linear layer with a 2:4 weight, on a GPU's sparse tensor cores (cuSPARSELt through
/// LibTorch). Forward needs 2:4 along the inputs, backward along the outputs: a transposable mask.
///
///   if (is_semi_sparse(bits, O, I))  // after each change of the mask
///     ...
///   if (semi_sparse_pays(inputs_BI, weight_OI))
///     outputs_BO = semi_sparse_product(inputs_BI, weight_OI, bias_O);
///
/// Symbols: B = samples, I = inputs, O = outputs. Each call compresses the weight, since every step
/// changes it. Bits differ from those of dense products.
///
/// Source: Mishra et al., arXiv 2104.08378.
namespace lockstep::model {

/// True if LibTorch has these products for the device of the tensor.
bool may_be_semi_sparse(const at::Tensor& weight);

/// True if a mask keeps at most 2 of 4 neighbours along both dimensions, whose extents must be
/// multiples of 16. bits: base/simd/bit_mask.h.
bool is_semi_sparse(const uint8_t* bits, int64_t num_rows, int64_t num_columns);

/// Smallest number of samples. An estimate, not measured: for fewer, a dense product takes no
/// longer than compressing the weight.
constexpr int64_t kLeastSemiSparse = 1024;

/// True for float16 or bfloat16 of enough samples, if the device can compute it. The first call of
/// a type tries a product on the device. If that fails, logs a warning and returns false from then
/// on. Thread-safe. Must not be called for the first time while a graph is captured.
bool semi_sparse_pays(const at::Tensor& inputs_BI, const at::Tensor& weight_OI);

/// Computes samples_BK weight_MK^T + bias_M, [B, K] -> [B, M]; bias_M may be undefined. All tensors
/// of one type. The weight has 2:4 rows. The inputs' gradient is a product with weight_OI.t().
at::Tensor semi_sparse_product(const at::Tensor& samples_BK, const at::Tensor& weight_MK,
                               const at::Tensor& bias_M);

}  // namespace lockstep::model
