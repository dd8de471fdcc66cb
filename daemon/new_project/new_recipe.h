#pragma once

#include <string>

#include "daemon/config/command_result.h"

namespace lockstep::daemon {

/// A commented recipe with the usual values: into `out_file`, or as the command's text if that is
/// empty. Throws Error(kCannotCreate) if the file is there already.
CommandResult new_recipe_command(const std::string& out_file);

}  // namespace lockstep::daemon
