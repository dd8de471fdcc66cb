#pragma once

#include <string>

#include "base/name_scopes.h"

namespace lockstep::checkpoint {

/// Keys of section `checkpoint` of the run file: where a new run's weights come from.
struct WarmStartOptions {
  std::string warm_start_ckpt;           ///< a save's name, or a folder: its newest; empty: none
  NameScopes checkpoint_restore_scopes;  ///< none: all variables of the model
  NameScopes checkpoint_exclude_scopes;  ///< of those, not these
};

WarmStartOptions read_warm_start_options(YamlFields* in);

}  // namespace lockstep::checkpoint
