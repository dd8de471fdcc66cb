#pragma once

#include <string>

#include "daemon/config/program.h"

/// Commands of `lockstep new`: a project, or a recipe.
namespace lockstep::cli {

/// Creates a folder with a network and a data set in Python, a run file and a recipe, ready to
/// train. Throws Error(kCannotCreate), and writes nothing, if one of these files already exists.
daemon::CommandResult new_project_command(const std::string& folder);

/// Writes a commented recipe with the usual values to `out_file`. If that is empty, the recipe is
/// the command's text. Throws Error(kCannotCreate) if the file exists.
daemon::CommandResult new_recipe_command(const std::string& out_file);

}  // namespace lockstep::cli
