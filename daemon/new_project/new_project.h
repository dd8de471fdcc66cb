#pragma once

#include <string>

#include "daemon/config/command_result.h"

namespace lockstep::daemon {

/// A folder with a network and a data set in Python, a run file and a recipe, which trains at once.
/// Throws Error(kCannotCreate) if the folder holds one of these files already; nothing is written
/// then.
CommandResult new_project_command(const std::string& folder);

}  // namespace lockstep::daemon
