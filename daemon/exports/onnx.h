#pragma once

#include <cstdint>
#include <string>

#include "daemon/exports/portable_network.h"

namespace lockstep::daemon {

/// The operators are used as this set defines them; it is the oldest one in which all of them have
/// the form that later sets kept. It has no GELU, which is written with Erf.
inline constexpr int64_t kOnnxOperatorSet = 13;

/// The bytes of an ONNX file: input `inputs` float32 [batch, input_shape...], any batch; output
/// `logits` [batch, num_classes], as the model's own forward gives in evaluation, within rounding.
/// Tensors have the model's names; the facts are metadata. Throws Error(kUsage) for a layer that
/// has no form there, and for tensors that do not fit into one file (2 GiB).
///
/// A quantized layer rounds its inputs and weights as training did, by QuantizeLinear and
/// DequantizeLinear; with `int8_weights` its weight is stored as int8 and only dequantized.
/// QuantizeLinear divides by the scale where training multiplies by its inverse, so a value within
/// rounding of the middle between two steps may go to the other one.
std::string onnx_bytes(const PortableNetwork& network, bool int8_weights = false);

}  // namespace lockstep::daemon
