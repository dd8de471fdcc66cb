#pragma once

#include <cstdint>
#include <vector>

#include "dist/communicator.h"
#include "optim/flat_params.h"
#include "optim/optimizer.h"
#include "recal/scheduled_modifier_manager.h"

namespace lockstep::train {

/// Which parameters share a buffer: those of one group and one dtype that are all trainable or all
/// frozen, up to bucket_bytes. `trainable` by parameter. Pure arithmetic, equal on all ranks.
optim::BufferPlan plan_layout(const ParamTable& params, const std::vector<bool>& trainable,
                              int64_t bucket_bytes);

/// Freezes and thaws: lays parameters, gradients and optimizer slots out for this set of trainable
/// parameters. Values and slots are kept, of the frozen ones too. Collective: throws
/// Error(kDisagree).everywhere() if the ranks' plans differ.
void flatten_for(const std::vector<bool>& trainable, int64_t bucket_bytes,
                 optim::FlatParams& flat_params, optim::Optimizer& optimizer,
                 dist::Communicator& control);

/// Brings optimizer and buffers in line with what the recipe changed: pruned weights have no
/// moments (else these would move them), momentum that is to start anew is zeroed, frozen
/// parameters leave the buffers. Collective.
void apply_recipe_changes(const recal::Applied& due, const recal::ScheduledModifierManager& recipe,
                          int64_t bucket_bytes, optim::FlatParams& flat_params,
                          optim::Optimizer& optimizer, dist::Communicator& control);

}  // namespace lockstep::train
