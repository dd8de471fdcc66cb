#pragma once

#include <string>

#include "daemon/config/command_result.h"

namespace lockstep::daemon {

/// Creates a folder with a network and a data set in Python, a run file and a recipe, ready to
/// train. Throws Error(kCannotCreate), and writes nothing, if one of these files already exists.
CommandResult new_project_command(const std::string& folder);

}  // namespace lockstep::daemon
