#pragma once

#include <optional>
#include <vector>

#include "base/tensors/param_shard.h"
#include "base/tensors/params.h"
#include "optim/options/optimizer_options.h"

namespace lockstep::optim {

/// Clips the gradients within the regions in place, first by norm, then by value. By norm: if the
/// square root of squared_grad_norm exceeds the limit, each gradient is multiplied by limit / norm,
/// like tf.clip_by_global_norm. squared_grad_norm covers the gradients of all parameters on all
/// ranks, with 0 for pruned weights (dist::GlobalStepStats). Gradients must be finite means. Equal
/// gradients and sums give equal bits on every rank. Returns the norm before clipping; nullopt
/// without clipping by norm.
std::optional<double> clip_gradients(const ClipOptions& options, std::vector<FlatBuffer>& buffers,
                                     const std::vector<ParamShard>& regions,
                                     std::optional<double> squared_grad_norm);

}  // namespace lockstep::optim
