#pragma once

#include "daemon/run/training_context.h"

namespace lockstep::daemon {

/// Refuses a run that would fail before its first update or at the end of its first epoch. It
/// checks:
///
///   - an export that the network has no form for,
///   - a warm start file that is missing or does not fit, and scopes that match nothing,
///   - targets that do not fit the outputs, in training or in evaluation,
///   - a last batch of one sample that the network cannot process,
///   - metrics pages whose files are missing.
///
/// Trains nothing and writes no file. But it changes weights and buffers, so do not train with this
/// context afterwards.
///
/// Throws Error with the exit code of the first fault and the texts of all.
void dry_run(TrainingContext& context);

}  // namespace lockstep::daemon
