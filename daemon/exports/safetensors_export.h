#pragma once

#include <string>

#include "daemon/exports/manifest.h"
#include "daemon/exports/saved_model.h"

namespace lockstep::daemon {

/// The save's model as a safetensors file (docs/quantization.md names its tensors), counted layer
/// by layer.
///
/// With `quantize`, weights of quantized layers become int8 with their scales, by the arithmetic
/// that training imitated: Error(kUsage) if nothing was quantized or some layer's input was never
/// observed. Without, weights stay float32, and the scales of quantized layers stand beside them,
/// so that whoever goes on with the model can imitate int8 as training did.
Written write_safetensors(const SavedModel& model, const std::string& out_file, bool quantize);

}  // namespace lockstep::daemon
