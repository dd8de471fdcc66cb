#include <algorithm>

#include "base/error.h"
#include "checkpoint/format/checkpoint_files.h"
#include "cli/ctl_command.h"
#include "cli/launching.h"
#include "daemon/config/run_config.h"

// `lockstep run`, and what it shares with `lockstep launch` and `ctl`: settings of a run file.
namespace lockstep::cli {

std::vector<std::string> lockstepd_arguments(const daemon::AboveFile& above) {
  std::vector<std::string> words;
  for (const std::string& set : above.sets) words.insert(words.end(), {"--set", set});
  if (!above.estimator.empty()) words.insert(words.end(), {"--estimator", above.estimator});
  // `--` must come last: all words after it belong to the estimator.
  if (!above.flags.empty()) words.emplace_back("--");
  words.insert(words.end(), above.flags.begin(), above.flags.end());
  return words;
}

bool is_given(const std::vector<std::string>& settings, const std::string& key) {
  const auto has_key = [&](const std::string& one) { return one.starts_with(key + "="); };
  return std::ranges::any_of(settings, has_key);
}

daemon::AboveFile with_missing(daemon::AboveFile above, const std::vector<std::string>& settings,
                               const std::vector<std::string>& sets) {
  std::vector<std::string> missing;
  for (const std::string& one : sets)
    if (!is_given(settings, one.substr(0, one.find('=')))) missing.push_back(one);
  // At the front, so that `above` wins: of several --set of a key, the last one counts.
  above.sets.insert(above.sets.begin(), missing.begin(), missing.end());
  return above;
}

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

}  // namespace

daemon::CommandResult run_command(const RunCommandOptions& options) {
  const daemon::RunConfig config =
      daemon::require_run_config(options.config_file, daemon::overrides_of(options.above));
  const std::string program = launch::rank_program(options);
  // The last lambda captures by value: it may be called on a thread that outlives this function.
  return {"", launch::supervise_ranks(
                  options, config.run.project().folder(),
                  [&](bool is_restart) { return rank_command(options, program, is_restart); },
                  [folder = config.checkpoint.folder(config.run.project()),
                   prefix = config.checkpoint.prefix] {
                    const auto newest = checkpoint::newest_commit(folder, prefix);
                    return launch::SaveFound{newest.prefix, newest.written};
                  })};
}

// Separate from ctl_command.cpp: `lockstep ctl` with the run's folder needs no LibTorch.
ControlOfRun read_control(const std::string& run_file) {
  const daemon::RunConfig config = daemon::require_run_config(run_file, {});
  if (config.control.is_off())
    throw Error(ExitCode::kUsage, "ctl",
                run_file + ": control.listen is off, so this run cannot be queried");
  const Project project = config.run.project();
  return {project.folder(), config.control.socket_path(project), config.control.is_on_pages(),
          config.metrics.access.token_file};
}

}  // namespace lockstep::cli
