#pragma once

#include <cstdint>
#include <vector>

#include "dist/communicator.h"
#include "optim/flat_params.h"
#include "optim/optimizer.h"
#include "recal/scheduled_modifier_manager.h"

namespace lockstep::train {

/// Assigns parameters to buffers. A buffer contains parameters of one group and one dtype that are
/// all trainable or all frozen, up to bucket_bytes. `trainable`: by parameter. A pure function,
/// equal on all ranks.
optim::BufferPlan plan_layout(const ParamTable& params, const std::vector<bool>& trainable,
                              int64_t bucket_bytes);

/// Freezes and unfreezes: lays out parameters, gradients and optimizer slots for this set of
/// trainable parameters. Values and slots are kept, also of frozen parameters. Collective: throws
/// Error(kDisagree).everywhere() if the ranks' plans differ.
void flatten_for(const std::vector<bool>& trainable, int64_t bucket_bytes,
                 optim::FlatParams& flat_params, optim::Optimizer& optimizer,
                 dist::Communicator& control);

/// Applies the recipe's changes to optimizer and buffers. Moments of pruned weights are zeroed
/// (otherwise they would move the weights), momentum to be reset is zeroed, and frozen parameters
/// leave the buffers. Collective.
void apply_recipe_changes(const recal::Applied& due, const recal::ScheduledModifierManager& recipe,
                          int64_t bucket_bytes, optim::FlatParams& flat_params,
                          optim::Optimizer& optimizer, dist::Communicator& control);

}  // namespace lockstep::train
