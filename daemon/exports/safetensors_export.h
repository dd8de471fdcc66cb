#pragma once

#include <string>

#include "daemon/exports/manifest.h"
#include "daemon/exports/saved_model.h"

namespace lockstep::daemon {

/// Writes the checkpoint's model as a safetensors file (docs/quantization.md names its tensors).
/// Returns counts for each layer.
///
/// With `quantize`, weights of quantized layers become int8 with their scales, by the arithmetic
/// that training simulated. Throws Error(kUsage) if nothing was quantized or some layer's input was
/// never observed. Without `quantize`, weights stay float32 and the scales of quantized layers are
/// added. So training in another program can simulate int8 in the same way.
Written write_safetensors(const SavedModel& model, const std::string& out_file, bool quantize);

}  // namespace lockstep::daemon
