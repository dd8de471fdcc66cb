#pragma once

#include <cstdint>
#include <vector>

#include "base/tensors/params.h"
#include "dist/reducer/gradient_reducer.h"
#include "optim/optimizer.h"
#include "recal/masks/mask_table.h"

namespace lockstep::train {

/// Returns the mask bits of one buffer's elements (base/bits/bit_mask.h); empty if all are kept.
std::vector<uint8_t> kept_bits_of(const FlatBuffer& buffer, const recal::MaskTable& masks);

/// Passes the masks to layers that can compute with kept elements alone (Param::follow_mask). Call
/// it whenever set_masks() is called.
void tell_layers(const recal::MaskTable& masks, const ParamTable& params);

/// Passes the masks to reducer and optimizer, buffer by buffer. Gradients of dropped elements
/// become +0 (or undefined if they are never read) and need not travel; their moments are not kept.
/// adds_squares: steps request StepRequests::squared_grad_norm, which reads all gradients. Call it
/// before the first step, and before each step whose masks or buffers changed, equally on all
/// ranks.
void set_masks(const recal::MaskTable& masks, const std::vector<FlatBuffer>& buffers,
               bool adds_squares, dist::GradientReducer& reducer, optim::Optimizer& optimizer);

}  // namespace lockstep::train
