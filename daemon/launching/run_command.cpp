#include "daemon/launching/run_command.h"

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <sstream>

#include "checkpoint/files/save_files.h"
#include "daemon/config/estimator_flags.h"
#include "daemon/config/run_config.h"
#include "daemon/launching/rank_program.h"
#include "launch/mpirun/hosts.h"
#include "launch/supervise/supervisor.h"

namespace lockstep::daemon {
namespace {

RunConfig read_run_file(const RunCommandOptions& options) {
  Diagnostics faults;
  RunConfig config = load_run_config(
      options.config_file, overrides_of(options.sets, options.estimator, options.flags), &faults);
  faults.throw_if_any("config");
  return config;
}

/// What each rank runs.
std::vector<std::string> rank_command(const RunCommandOptions& options, const std::string& program,
                                      bool is_restart) {
  std::vector<std::string> words{program, "--config", options.config_file, "--resume",
                                 is_restart ? "auto" : options.resume};
  for (const std::string& set : options.sets) words.insert(words.end(), {"--set", set});
  if (!options.estimator.empty()) words.insert(words.end(), {"--estimator", options.estimator});
  if (options.accept_recipe_change) words.emplace_back("--accept-recipe-change");
  if (!options.flags.empty()) words.emplace_back("--");
  words.insert(words.end(), options.flags.begin(), options.flags.end());
  return words;
}

launch::SaveFound newest_save(const RunConfig& config) {
  const auto saves =
      checkpoint::find_saves(config.run.project().checkpoints(), config.checkpoint.prefix);
  if (saves.empty()) return {};
  std::error_code ignored;
  const auto written =
      std::filesystem::last_write_time(checkpoint::index_path(saves.back().prefix), ignored);
  return {saves.back().prefix, written.time_since_epoch().count()};
}

std::vector<std::string> words_of_variable(const char* name) {
  const char* text = std::getenv(name);
  std::istringstream words(text != nullptr ? text : "");
  return {std::istream_iterator<std::string>(words), {}};
}

}  // namespace

CommandResult run_command(const RunCommandOptions& options) {
  const RunConfig config = read_run_file(options);
  const std::string program = rank_program(options.program);
  launch::SupervisorOptions supervisor{
      .num_ranks = options.num_ranks,
      .max_restarts = options.max_restarts,
      .grace_s = options.grace_s,
      .mpirun_arguments = words_of_variable("LOCKSTEP_MPIRUN_ARGS"),
      .folder = config.run.project().folder(),
      .program = [&](bool is_restart) { return rank_command(options, program, is_restart); },
      .newest_save = [&] { return newest_save(config); }};
  if (!options.hosts.empty()) supervisor.hosts = launch::parse_hosts(options.hosts);
  if (options.num_ranks == 0)
    supervisor.num_ranks = supervisor.hosts.empty() ? 1 : launch::num_slots(supervisor.hosts);
  supervisor.min_ranks = options.min_ranks == 0 ? supervisor.num_ranks : options.min_ranks;
  return {"", launch::supervise(supervisor)};
}

}  // namespace lockstep::daemon
