#pragma once

#include <string>

#include "daemon/exports/portable_network.h"

namespace lockstep::daemon {

/// The bytes of a TorchScript archive: a module whose forward takes float32 inputs
/// [batch, input_shape...] and gives logits [batch, num_classes] as the model's own forward does in
/// evaluation. Its parameters and buffers have the model's names, so that state_dict() of Python
/// shows them; a quantized layer rounds its inputs and weights by ATen's fake_quantize operators,
/// as training did, and has the buffers weight_scale and weight_zero_point. The facts stand in
/// extra files of those names. Throws Error(kUsage) for a layer that has no form there.
std::string torchscript_bytes(const PortableNetwork& network);

/// The source of its forward.
std::string torchscript_source(const PortableNetwork& network);

}  // namespace lockstep::daemon
