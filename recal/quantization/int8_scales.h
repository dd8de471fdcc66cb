#pragma once

#include <cstdint>
#include <limits>

#include <ATen/core/Tensor.h>

/// The arithmetic of int8 quantization, shared by training and by the conversion to real int8.
/// A quantized value q stands for scale * (q - zero_point).
///
///   weights  symmetric: q in [-127, 127], zero point 0, one scale per output (dimension 0) or one
///            for the whole tensor
///   inputs   asymmetric: q in [0, 255], one scale and zero point for the whole tensor
///
/// Zero is a quantized value in both, so a sparse layer stays sparse. Rounding is to the nearest,
/// ties to even. All of it in float32, in the order of operations of PyTorch's own observers, so
/// that both give the same bits.
///
/// Symbols: O = outputs, X = the other dimensions of a weight.
/// Source: Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
/// Integer-Arithmetic-Only Inference", sections 2.1 and 3.
namespace lockstep::recal {

inline constexpr int64_t kWeightQuantMax = 127;  ///< and its negative
inline constexpr int64_t kInputQuantMax = 255;   ///< from 0
/// Ranges that would give less have this scale: its inverse stays finite, and zeros stay zeros.
inline constexpr float kSmallestScale = std::numeric_limits<float>::epsilon();

struct InputScale {
  float scale = 1;
  int32_t zero_point = 0;
};

/// For inputs in [min, max], widened so that the range holds 0. min <= max, both finite.
InputScale input_scale(float min, float max);

/// max|w| / 127, float32 on the weight's device: [O] per output, else [1]. No gradient.
at::Tensor weight_scales(const at::Tensor& weight_OX, bool per_output);

/// q of each weight, int8 [O, X]. `scales` as weight_scales() gives them.
at::Tensor quantize_weight(const at::Tensor& weight_OX, const at::Tensor& scales);

}  // namespace lockstep::recal
