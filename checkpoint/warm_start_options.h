#pragma once

#include <string>

#include "base/tensors/name_scopes.h"
#include "checkpoint/rename_rules.h"

namespace lockstep::checkpoint {

/// Keys of section `checkpoint` of the run file: where a new run's weights come from.
struct WarmStartOptions {
  /// What open_weights() takes, or a folder: its newest save; empty: none.
  std::string warm_start_ckpt;
  NameScopes checkpoint_restore_scopes;  ///< none: all variables of the model
  NameScopes checkpoint_exclude_scopes;  ///< of those, not these
  /// How weights of linear layers and convolutions lie there: lockstep [O, I] and [O, I, H, W],
  /// tensorflow [I, O] and [H, W, I, O], or auto: by what the file says.
  std::string warm_start_kernels = "auto";
  RenameRules warm_start_rename;  ///< names there -> names here
};

WarmStartOptions read_warm_start_options(ConfigReader* in);

}  // namespace lockstep::checkpoint
