#include "daemon/new_project/new_recipe.h"

#include <filesystem>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "recal/recipe/recipe_template.h"

namespace lockstep::daemon {

CommandResult new_recipe_command(const std::string& out_file) {
  if (out_file.empty()) return {recal::recipe_template(), 0};
  std::error_code ignored;  // a file that is not accessible is refused by the write
  // Never overwrite a recipe that a user may have edited.
  if (std::filesystem::exists(out_file, ignored))
    throw Error(ExitCode::kCannotCreate, "new",
                out_file + " is there already: give another name, or remove it first");
  files::write_atomically(out_file, recal::recipe_template());
  return {fmt::format("{0}: a recipe with the usual values\n  see what it does: lockstep plan {0} "
                      "--steps-per-epoch N\n",
                      out_file),
          0};
}

}  // namespace lockstep::daemon
