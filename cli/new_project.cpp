#include "cli/new_project.h"

#include <array>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "launch/ranks.h"
#include "recal/recipe/recipe_template.h"

// Files of cli/new_project, linked into the program by cli/new_project/project_files.S.
extern "C" const char lockstep_net_py[], lockstep_data_py[], lockstep_run_yaml[],
    lockstep_recipe_yaml[];

namespace lockstep::cli {
namespace {

/// Name and text of each file.
constexpr std::array<std::pair<const char*, const char*>, 4> kFiles{
    {{"net.py", lockstep_net_py},
     {"data.py", lockstep_data_py},
     {"run.yaml", lockstep_run_yaml},
     {"recipe.yaml", lockstep_recipe_yaml}}};

/// Returns the command for two ranks: of the source tree, of the wheel, or Open MPI's own.
std::string start_of_two_ranks() {
  if (files::exists("launch/mpirun.sh")) return "launch/mpirun.sh 2";
  return launch::is_command("mpirun.sh") ? "mpirun.sh 2" : "mpirun -n 2";
}

}  // namespace

daemon::CommandResult new_project_command(const std::string& folder) {
  const std::filesystem::path root = folder;
  for (const auto& [name, text] : kFiles)
    if (files::exists(root / name))
      throw Error(ExitCode::kCannotCreate, "new",
                  fmt::format("{} already exists: give another folder, or remove it first",
                              (root / name).string()));
  files::make_folders(root);
  for (const auto& [name, text] : kFiles) files::write_atomically(root / name, text);
  return {fmt::format("{0}: net.py, data.py, run.yaml and recipe.yaml\n"
                      "  check it:     lockstep check {0}/run.yaml\n"
                      "  train it:     {1} lockstepd --config {0}/run.yaml\n",
                      folder, start_of_two_ranks()),
          0};
}

daemon::CommandResult new_recipe_command(const std::string& out_file) {
  if (out_file.empty()) return {recal::recipe_template(), 0};
  // Never overwrite a recipe that a user may have edited.
  if (files::exists(out_file))
    throw Error(ExitCode::kCannotCreate, "new",
                out_file + " already exists: give another name, or remove it first");
  files::write_atomically(out_file, recal::recipe_template());
  return {fmt::format("{0}: a recipe with the usual values\n  print its plan: lockstep plan {0} "
                      "--steps-per-epoch N\n",
                      out_file),
          0};
}

}  // namespace lockstep::cli
