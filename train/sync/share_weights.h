#pragma once

#include <string>

#include "dist/communicator.h"
#include "dist/process_info.h"
#include "dist/sync_options.h"
#include "model/model.h"
#include "optim/flat_params.h"
#include "recal/scheduled_modifier_manager.h"

namespace lockstep::train {

/// Who has to do with the weights of a run; all of it outlives the run.
struct ShareWeightsParts {
  const dist::SyncOptions& options;
  model::Model& model;
  optim::FlatParams& flat_params;
  recal::ScheduledModifierManager& recipe;
  dist::Communicator& control;
  dist::Communicator& gradients;  ///< in whose shared memory they will be
  const dist::ProcessInfo& process;
  bool has_users_hooks = false;    ///< code around the steps that an estimator brings
  bool may_write_weights = false;  ///< a plug-in's network that does not say that its passes repeat
                                   ///< themselves (ModelType::repeats_itself)
};

/// Throws Error(kConfig).everywhere() if sync.share_weights is `on` and each rank must keep a copy
/// of its own, whatever memory there is.
void require_sharable(const ShareWeightsParts& parts);

/// sync.share_weights: moves weights and gradients into memory that all ranks share, where that is
/// asked for, or by `auto` where it can be and pays; rank 0 logs what was chosen and why. Before
/// anything is restored.
///
/// Collective. Throws Error(kConfig).everywhere() for `on` where it cannot be, Error(kDisagree) if
/// the ranks begin with different weights.
void share_weights(const ShareWeightsParts& parts);

}  // namespace lockstep::train
