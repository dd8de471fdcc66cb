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
  std::string resume = "auto";  ///< of the first start; later ones go on from the newest save
  bool accept_recipe_change = false;
};

/// Trains until it is done: starts the ranks with mpirun and looks after them
/// (launch/supervise/supervisor.h). The run file is read first, so that faults in it start nothing.
CommandResult run_command(const RunCommandOptions& options);

}  // namespace lockstep::daemon
