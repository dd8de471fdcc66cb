#pragma once

#include <optional>
#include <vector>

#include "base/tensors/param_shard.h"
#include "base/tensors/params.h"
#include "optim/options/optimizer_options.h"

namespace lockstep::optim {

/// Shortens the gradients within the regions in place, first by norm, then by value. By norm: where
/// the square root of squared_grad_norm (over the gradients of all parameters on all ranks, 0 where
/// weights are pruned: dist::GlobalStepStats) is above the limit, each gradient is multiplied by
/// limit / norm, as tf.clip_by_global_norm does. Gradients must be finite means. Equal gradients
/// and sums give equal bits on every rank. Returns the norm before clipping; nothing if none is
/// asked for.
std::optional<double> clip_gradients(const ClipOptions& options, std::vector<FlatBuffer>& buffers,
                                     const std::vector<ParamShard>& regions,
                                     std::optional<double> squared_grad_norm);

}  // namespace lockstep::optim
