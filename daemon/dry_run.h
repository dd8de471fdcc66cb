#pragma once

#include "daemon/run/training_context.h"

namespace lockstep::daemon {

/// Refuses what a run with this context would refuse before its first update, or at the end of its
/// first epoch: an export that the network has no form for, a warm start file that is missing or
/// does not fit, scopes that match nothing, targets that do not fit the outputs, in training or in
/// evaluation, a last batch of one sample that the network does not take, pages whose files are
/// missing. Trains nothing and writes no file, but changes
/// weights and buffers: of no use for training afterwards.
///
/// Throws Error with the exit code of the first fault and the texts of all.
void dry_run(TrainingContext& context);

}  // namespace lockstep::daemon
