#pragma once

#include <string>

#include "daemon/config/command_result.h"

namespace lockstep::daemon {

/// Writes a commented recipe with the usual values to `out_file`. If that is empty, the recipe is
/// the command's text. Throws Error(kCannotCreate) if the file exists.
CommandResult new_recipe_command(const std::string& out_file);

}  // namespace lockstep::daemon
