#pragma once

#include <string>

#include "base/tensors/name_scopes.h"
#include "checkpoint/rename_rules.h"

namespace lockstep::checkpoint {

/// Keys of section `checkpoint` of the run file for the initial weights of a new run.
struct WarmStartOptions {
  /// Path for open_weights(), or a folder, which means its newest checkpoint. Empty: no warm start.
  std::string warm_start_ckpt;
  NameScopes checkpoint_restore_scopes;  ///< empty: all variables of the model
  NameScopes checkpoint_exclude_scopes;  ///< variables to exclude from the above
  /// Dimension order of the weights of linear layers and convolutions in the file. `lockstep`: [O,
  /// I] and [O, I, H, W]. `tensorflow`: [I, O] and [H, W, I, O]. `auto`: as the file indicates.
  std::string warm_start_kernels = "auto";
  RenameRules warm_start_rename;  ///< names in the file -> names here
};

WarmStartOptions read_warm_start_options(ConfigReader* in);

}  // namespace lockstep::checkpoint
