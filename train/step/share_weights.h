#pragma once

#include "dist/communicator.h"
#include "dist/process_info.h"
#include "dist/reduction_modes.h"
#include "model/model.h"
#include "optim/flat_params.h"
#include "recal/scheduled_modifier_manager.h"

namespace lockstep::train {

/// Components that use the weights of a run; all outlive the run.
struct ShareWeightsParts {
  const dist::SyncOptions& options;
  model::Model& model;
  optim::FlatParams& flat_params;
  recal::ScheduledModifierManager& recipe;
  dist::Communicator& control;
  dist::Communicator& gradients;  ///< the communicator that provides the shared memory
  const dist::ProcessInfo& process;
  bool has_users_hooks = false;    ///< an estimator has code around the steps
  bool may_write_weights = false;  ///< a plug-in's network that does not declare that its passes
                                   ///< repeat themselves (ModelType::repeats_itself)
};

/// Throws Error(kConfig).everywhere() if sync.share_weights is `on` but each rank needs a separate
/// copy, whatever memory there is.
void require_sharable(const ShareWeightsParts& parts);

/// Moves weights and gradients into memory that all ranks share, as sync.share_weights says: `on`,
/// or `auto` if it is possible and useful. Rank 0 logs the choice and the reason. Call it before
/// any restore.
///
/// Collective. Throws Error(kConfig).everywhere() for `on` if sharing is impossible,
/// Error(kDisagree) if the ranks begin with different weights.
void share_weights(const ShareWeightsParts& parts);

}  // namespace lockstep::train
