#pragma once

#include "daemon/exports/portable_network.h"
#include "daemon/exports/saved_model.h"

namespace lockstep::daemon {

/// Fake quantization as the save's run computed with it: to `network` come the scales and zero
/// points of each layer that was quantized (recal/quantization/int8_scales.h), and its weights as
/// int8.
void add_quantization(const SavedModel& saved, PortableNetwork* network);

/// Throws Error(kUsage) unless some layer of the save is quantized and the inputs of all of these
/// were observed, so that whole numbers can be written for them.
void require_quantized(const SavedModel& saved);

}  // namespace lockstep::daemon
