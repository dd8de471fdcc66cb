#pragma once

#include <cstdint>
#include <string>

#include "dist/communicator.h"
#include "model/model.h"

namespace lockstep::train {

/// Checks weights and buffers in one pass, before a save and at the end of training. Updates with a
/// non-finite loss or gradients are skipped, but a finite update can still overflow weights, and
/// training cannot recover from that. Throws Error(kNonFinite) on all ranks if a weight of any rank
/// is not finite, or a buffer contains NaN (infinity may be a mask). `last_commit`: the last
/// committed checkpoint, empty if none. Collective.
void require_finite_weights(const model::Model& model, int64_t step, const std::string& last_commit,
                            dist::Communicator& control);

}  // namespace lockstep::train
