#include "daemon/launching/run_command.h"

#include <filesystem>

#include "checkpoint/files/save_files.h"

namespace lockstep::daemon {
namespace {

/// Returns the command line of each rank.
std::vector<std::string> rank_command(const RunCommandOptions& options, const std::string& program,
                                      bool is_restart) {
  std::vector<std::string> words{program, "--config", options.config_file, "--resume",
                                 is_restart ? "auto" : options.resume};
  if (options.accept_recipe_change) words.emplace_back("--accept-recipe-change");
  const std::vector<std::string> more = lockstepd_arguments(options.above);
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// Returns the newest checkpoint. Its index file's time distinguishes commits of the same number.
launch::SaveFound newest_save(const std::filesystem::path& folder, const std::string& prefix) {
  const auto saves = checkpoint::find_saves(folder, prefix);
  if (saves.empty()) return {};
  std::error_code ignored;
  const auto written =
      std::filesystem::last_write_time(checkpoint::index_path(saves.back().prefix), ignored);
  return {saves.back().prefix, written.time_since_epoch().count()};
}

}  // namespace

CommandResult run_command(const RunCommandOptions& options) {
  const RunConfig config = load_run_config(options.config_file, options.above);
  const std::string program = rank_program(options);
  // The last lambda captures by value: it may be called on a thread that outlives this function.
  return {"", supervise_ranks(
                  options, config.run.project().folder(),
                  [&](bool is_restart) { return rank_command(options, program, is_restart); },
                  [folder = config.run.project().checkpoints(), prefix = config.checkpoint.prefix] {
                    return newest_save(folder, prefix);
                  })};
}

}  // namespace lockstep::daemon
