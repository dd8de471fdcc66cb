#pragma once

#include <cstdint>
#include <vector>

#include "base/tensors/params.h"
#include "dist/reducer/gradient_reducer.h"
#include "optim/optimizer.h"
#include "recal/masks/mask_table.h"

namespace lockstep::train {

/// Bits of one buffer's elements that the masks keep (base/bits/bit_mask.h); empty if that is all.
std::vector<uint8_t> kept_bits_of(const FlatBuffer& buffer, const recal::MaskTable& masks);

/// Tells layers that can compute with kept elements alone which these are (Param::follow_mask).
/// Call it whenever set_masks() is called.
void tell_layers(const recal::MaskTable& masks, const ParamTable& params);

/// Tells reducer and optimizer what the masks keep, buffer by buffer: gradients of the rest become
/// +0, or anything where nobody reads them, and need not travel, and moments of the rest are not
/// kept. adds_squares: steps ask for StepRequests::squared_grad_norm, which reads all. Before the
/// first step, and before each step whose masks or buffers are others than the last one's; the same
/// on all ranks.
void set_masks(const recal::MaskTable& masks, const std::vector<FlatBuffer>& buffers,
               bool adds_squares, dist::GradientReducer& reducer, optim::Optimizer& optimizer);

}  // namespace lockstep::train
