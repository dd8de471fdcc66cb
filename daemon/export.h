#pragma once

#include <string>

#include "daemon/commands.h"

namespace lockstep::daemon {

struct ExportOptions {
  std::string where;     ///< folder of saves (its newest complete one), or the prefix of a save
  std::string out_file;  ///< replaced if it is there
  bool quantize = false;
};

/// Writes the model of a save into a safetensors file (docs/quantization.md names its tensors) and
/// says what it wrote, layer by layer.
///
/// With `quantize`, weights of quantized layers become int8 with their scales, by the arithmetic
/// that training imitated. Without, weights stay float32, and the scales of quantized layers stand
/// beside them, so that whoever goes on with the model can imitate int8 as training did.
///
/// A weight that its mask prunes must be zero: otherwise the save is not trusted (kBadData) and
/// nothing is written. Throws Error(kUsage) if `quantize` is asked for and nothing was quantized or
/// some layer's input was never observed; other errors as read_saved_model and write_safetensors.
CommandResult export_command(const ExportOptions& options);

}  // namespace lockstep::daemon
