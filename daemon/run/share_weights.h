#pragma once

#include "daemon/run/training_context.h"
#include "dist/communicator.h"
#include "dist/process_info.h"

namespace lockstep::daemon {

/// sync.share_weights: moves weights and gradients into memory that all ranks share, where that is
/// asked for, or by `auto` where it can be and pays; rank 0 logs what was chosen and why. Before
/// anything is restored. `gradients`: the context's, which outlives it.
///
/// Collective. Throws Error(kConfig).everywhere() for `on` where it cannot be, Error(kDisagree) if
/// the ranks begin with different weights.
void share_weights(TrainingContext& context, dist::Communicator& gradients,
                   const dist::ProcessInfo& process);

}  // namespace lockstep::daemon
