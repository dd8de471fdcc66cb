#pragma once

#include <string>

#include "daemon/exports/portable_network.h"

namespace lockstep::daemon {

/// Returns the bytes of a TorchScript archive. Its forward takes float32 inputs [batch,
/// input_shape...] and returns logits [batch, num_classes], as the model's own forward in
/// evaluation. Parameters and buffers have the model's names, as state_dict() in Python shows.
///
/// A quantized layer rounds its inputs and weights by ATen's fake_quantize operators, as training
/// did. It has the buffers weight_scale and weight_zero_point. The facts are extra files with their
/// names. Throws Error(kUsage) for a layer that has no TorchScript form.
std::string torchscript_bytes(const PortableNetwork& network);

/// Returns the source of the archive's forward.
std::string torchscript_source(const PortableNetwork& network);

}  // namespace lockstep::daemon
