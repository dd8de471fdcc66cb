#pragma once

#include "daemon/exports/portable_network.h"
#include "daemon/exports/saved_model.h"

namespace lockstep::daemon {

/// Adds the fake quantization of the checkpoint's run to `network`. For each quantized layer these
/// are scales and zero points (recal/quantization/int8_scales.h) and its weights as int8.
void add_quantization(const SavedModel& saved, PortableNetwork* network);

/// Throws Error(kUsage) unless some layer of the checkpoint is quantized and the inputs of all
/// quantized layers were observed. Without observed inputs there is no scale for int8 export.
void require_quantized(const SavedModel& saved);

}  // namespace lockstep::daemon
