#pragma once

#include "daemon/run/training_context.h"

namespace lockstep::daemon {

/// Loads the model's variables from checkpoint.warm_start_ckpt, if the run file names one. Loads
/// the variables in checkpoint_restore_scopes that are not in checkpoint_exclude_scopes. Step,
/// optimizer and all other state stay those of a new run. Collective; reads only. Rank 0 logs what
/// was loaded and what was not.
///
/// checkpoint/weights/weights_file.h and load_weights.h describe the accepted files and how values
/// are matched to variables. Every requested variable must exist with the right shape. The ranks
/// compare their weights afterwards.
///
/// `is_resumed`: the run resumed from its own checkpoint, which takes precedence. Then only a line
/// is logged.
///
/// Throws on every rank. Error(kInputMissing, kUsage): there is no such checkpoint. kConfig: a
/// scope matches nothing, or variables are missing or have another form. kBadData: damage.
void warm_start(TrainingContext& context, bool is_resumed);

}  // namespace lockstep::daemon
