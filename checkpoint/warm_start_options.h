#pragma once

#include <map>
#include <optional>
#include <string>

#include "base/tensors/name_scopes.h"

namespace lockstep::checkpoint {

/// Keys of section `checkpoint` of the run file: where a new run's weights come from.
struct WarmStartOptions {
  std::string warm_start_ckpt;           ///< a save's name, or a folder: its newest; empty: none
  NameScopes checkpoint_restore_scopes;  ///< none: all variables of the model
  NameScopes checkpoint_exclude_scopes;  ///< of those, not these
  /// How weights of linear layers and convolutions lie there: lockstep [O, I] and [O, I, H, W], or
  /// tensorflow [I, O] and [H, W, I, O].
  std::string warm_start_kernels = "lockstep";
  /// Variables or parts there -> the same here, with slashes.
  std::map<std::string, std::string> warm_start_names;

  /// The name there of a variable of the model (slashed), if a rule gives it one: of the rule whose
  /// part of the model is the deepest that holds the variable.
  std::optional<std::string> name_there(const std::string& variable) const;
};

WarmStartOptions read_warm_start_options(ConfigReader* in);

}  // namespace lockstep::checkpoint
