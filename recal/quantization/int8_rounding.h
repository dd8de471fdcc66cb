#pragma once

#include <cstdint>
#include <limits>

#include <ATen/core/Tensor.h>

/// Arithmetic of int8 quantization, for training and for conversion to real int8. A quantized value
/// q represents scale * (q - zero_point).
///
///   weights  symmetric: q in [-127, 127], zero point 0, one scale per output (dimension 0) or one
///            for the whole tensor
///   inputs   asymmetric: q in [0, 255], one scale and zero point for the whole tensor
///
/// Zero is exactly representable in both, so a sparse layer stays sparse. Rounding is to nearest,
/// ties to even. All computation is in float32, in the order of PyTorch's observers, so both give
/// the same bits.
///
/// round_input() and round_weight() round in the forward pass. Their bits equal those of ATen's
/// fake_quantize_*, which computes element by element. Contiguous float32 tensors on the CPU use
/// kernels of this folder, all others use ATen. Non-finite values become NaN, while ATen would turn
/// them into numbers: rounding must not hide an overflow.
///
/// Symbols: O = outputs, X = the other dimensions of a weight.
/// Source: Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
/// Integer-Arithmetic-Only Inference", sections 2.1 and 3.
namespace lockstep::recal {

inline constexpr int64_t kWeightQuantMax = 127;  ///< and -127
inline constexpr int64_t kInputQuantMax = 255;   ///< and 0
/// Minimum of a scale: its inverse stays finite, and zeros stay zeros.
inline constexpr float kSmallestScale = std::numeric_limits<float>::epsilon();

struct InputScale {
  float scale = 1;
  int32_t zero_point = 0;
};

/// Computes scale and zero point for inputs in [min, max], extended so that the range contains 0.
/// Requires min <= max, both finite.
InputScale input_scale(float min, float max);

/// Computes max|w| / 127, float32 on the weight's device: [O] per output, else [1]. No gradient.
at::Tensor weight_scales(const at::Tensor& weight_OX, bool per_output);

/// Computes q of each weight, int8 [O, X]. `scales` must come from weight_scales().
at::Tensor quantize_weight(const at::Tensor& weight_OX, const at::Tensor& scales);

/// Computes scale * (q - zero_point) for each element, q within [0, 255]. The gradient passes
/// straight through where q was in that range before limiting, and is 0 elsewhere.
at::Tensor round_input(const at::Tensor& input, InputScale by);

/// Computes scale * q for each weight. `scales` must come from weight_scales() for this weight. So
/// no weight is outside the range, and the gradient passes straight through everywhere.
at::Tensor round_weight(const at::Tensor& weight_OX, const at::Tensor& scales);

}  // namespace lockstep::recal
