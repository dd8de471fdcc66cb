#pragma once

#include <cstdint>
#include <string>

#include "daemon/exports/portable_network.h"

namespace lockstep::daemon {

/// ONNX operator set of the exported files: the oldest one in which all used operators have the
/// form that later sets kept. It has no GELU, which is composed with Erf.
inline constexpr int64_t kOnnxOperatorSet = 13;

/// Returns the bytes of an ONNX file. Input: `inputs`, float32 [batch, input_shape...], any batch.
/// Output: `logits` [batch, num_classes], equal to the model's own forward in evaluation within
/// rounding. Tensors have the model's names. The facts are metadata. Throws Error(kUsage) for a
/// layer that has no ONNX form, and for tensors that do not fit into one file (2 GiB).
///
/// A quantized layer rounds its inputs and weights as training did, by QuantizeLinear and
/// DequantizeLinear. With `int8_weights` its weight is stored as int8 and only dequantized.
/// QuantizeLinear divides by the scale, where training multiplies by its inverse. So a value near
/// the middle between two steps may be rounded to the other one.
std::string onnx_bytes(const PortableNetwork& network, bool int8_weights = false);

}  // namespace lockstep::daemon
