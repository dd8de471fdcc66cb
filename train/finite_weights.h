#pragma once

#include <cstdint>
#include <string>

#include "dist/communicator.h"
#include "model/model.h"

namespace lockstep::train {

/// Updates whose loss or gradients are not finite are skipped; but a finite update may still be so
/// large that weights overflow, and no step comes back from there. Before a save and at the end:
/// one pass over the weights and buffers. Throws Error(kNonFinite) on all ranks where a weight of
/// any rank is not finite, or a buffer holds NaN: an infinite one may be a mask. `last_commit`: the
/// save that stands, empty if there is none. Collective.
void require_finite_weights(const model::Model& model, int64_t step, const std::string& last_commit,
                            dist::Communicator& control);

}  // namespace lockstep::train
