#include "cli/new_project.h"

#include <array>
#include <filesystem>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "launch/ranks.h"
#include "recal/recipe/recipe_template.h"

// Files of cli/new_project, linked into the program by cli/new_project/project_files.S.
extern "C" const char lockstep_net_py_begin[], lockstep_net_py_end[];
extern "C" const char lockstep_data_py_begin[], lockstep_data_py_end[];
extern "C" const char lockstep_run_yaml_begin[], lockstep_run_yaml_end[];
extern "C" const char lockstep_recipe_yaml_begin[], lockstep_recipe_yaml_end[];

namespace lockstep::daemon {
namespace {

struct ProjectFile {
  const char* name;
  std::string_view text;
};

std::string_view between(const char* begin, const char* end) {
  return {begin, static_cast<size_t>(end - begin)};
}

std::array<ProjectFile, 4> project_files() {
  return {{{"net.py", between(lockstep_net_py_begin, lockstep_net_py_end)},
           {"data.py", between(lockstep_data_py_begin, lockstep_data_py_end)},
           {"run.yaml", between(lockstep_run_yaml_begin, lockstep_run_yaml_end)},
           {"recipe.yaml", between(lockstep_recipe_yaml_begin, lockstep_recipe_yaml_end)}}};
}

/// Returns the command for two ranks: of the source tree, of the wheel, or Open MPI's own.
std::string start_of_two_ranks() {
  if (files::exists("launch/mpirun.sh")) return "launch/mpirun.sh 2";
  return is_command("mpirun.sh") ? "mpirun.sh 2" : "mpirun -n 2";
}

}  // namespace

CommandResult new_project_command(const std::string& folder) {
  const std::filesystem::path root = folder;
  for (const ProjectFile& file : project_files())
    if (files::exists(root / file.name))
      throw Error(ExitCode::kCannotCreate, "new",
                  fmt::format("{} is there already: give another folder, or remove it first",
                              (root / file.name).string()));
  files::make_folders(root);
  for (const ProjectFile& file : project_files())
    files::write_atomically(root / file.name, std::string(file.text));
  return {fmt::format("{0}: net.py, data.py, run.yaml and recipe.yaml\n"
                      "  look at it:   lockstep check {0}/run.yaml\n"
                      "  train it:     {1} lockstepd --config {0}/run.yaml\n",
                      folder, start_of_two_ranks()),
          0};
}

CommandResult new_recipe_command(const std::string& out_file) {
  if (out_file.empty()) return {recal::recipe_template(), 0};
  // Never overwrite a recipe that a user may have edited.
  if (files::exists(out_file))
    throw Error(ExitCode::kCannotCreate, "new",
                out_file + " is there already: give another name, or remove it first");
  files::write_atomically(out_file, recal::recipe_template());
  return {fmt::format("{0}: a recipe with the usual values\n  see what it does: lockstep plan {0} "
                      "--steps-per-epoch N\n",
                      out_file),
          0};
}

}  // namespace lockstep::daemon
