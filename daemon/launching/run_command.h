#pragma once

#include <string>

#include "daemon/config/command_result.h"
#include "daemon/launching/above_file.h"
#include "daemon/launching/supervised_ranks.h"

namespace lockstep::daemon {

/// The command line of `lockstep run`.
struct RunCommandOptions : RanksOptions {
  std::string config_file;
  AboveFile above;
  std::string resume = "auto";  ///< for the first start; later ones use auto
  bool accept_recipe_change = false;
};

/// Trains until the run is done: starts the ranks with mpirun and supervises them
/// (launch/supervise/supervisor.h). Reads the run file first, so nothing starts if it has faults.
CommandResult run_command(const RunCommandOptions& options);

}  // namespace lockstep::daemon
