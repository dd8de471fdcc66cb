#pragma once

#include <string>
#include <vector>

#include "daemon/config/command_result.h"
#include "daemon/config/overrides.h"

namespace lockstep::daemon {

/// The command line of `lockstep run`.
struct RunCommandOptions {
  std::string config_file;
  std::vector<std::string> sets;   ///< texts after --set
  std::string estimator;           ///< of --estimator
  std::vector<std::string> flags;  ///< of the estimator, from behind `--`
  int num_ranks = 0;               ///< 0: the hosts' slots, 1 without hosts
  int min_ranks = 0;               ///< 0: num_ranks
  std::string hosts;               ///< launch::parse_hosts(); empty: this host
  int max_restarts = 3;
  double grace_s = 30;
  std::string resume = "auto";  ///< of the first start; later ones go on from the newest save
  bool accept_recipe_change = false;
  std::string program;  ///< what each rank runs; empty: the lockstepd beside this program
};

/// Trains until it is done: starts the ranks with mpirun and looks after them
/// (launch/supervise/supervisor.h). The run file is read first, so that faults in it start nothing.
CommandResult run_command(const RunCommandOptions& options);

}  // namespace lockstep::daemon
