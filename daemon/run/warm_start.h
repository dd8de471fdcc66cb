#pragma once

#include "daemon/run/training_context.h"

namespace lockstep::daemon {

/// Fills the model's variables from checkpoint.warm_start_ckpt, if the run file names one: those in
/// checkpoint_restore_scopes but not in checkpoint_exclude_scopes. Step, optimizer and everything
/// else stay those of a new run. Collective; reads only. Says on rank 0 what was loaded and what
/// not.
///
/// What may be named, and how values find their variables: checkpoint/weights/weights_file.h and
/// load_weights.h. Every variable that is asked for must be there in its form. The ranks compare
/// their weights afterwards.
///
/// `is_resumed`: the run goes on from a save of its own, which wins: only a log line.
///
/// Throws on every rank: Error(kInputMissing, kUsage) if there is no such checkpoint, kConfig for a
/// scope that names nothing, for variables that it lacks or holds in another form, kBadData for
/// damage.
void warm_start(TrainingContext& context, bool is_resumed);

}  // namespace lockstep::daemon
