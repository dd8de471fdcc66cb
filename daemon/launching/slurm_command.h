#pragma once

#include <string>

#include "daemon/config/command_result.h"
#include "daemon/launching/above_file.h"
#include "launch/slurm/sbatch_script.h"

namespace lockstep::daemon {

/// The command line of `lockstep launch slurm`.
struct SlurmCommandOptions {
  std::string config_file;
  AboveFile above;
  std::string program;    ///< what each rank runs; empty: the lockstepd beside this program
  std::string out_file;   ///< empty: the script is the command's text
  launch::SlurmJob job;   ///< name and program are filled in here
  int cpus_per_rank = 0;  ///< 0: as the cluster gives
};

/// The script that trains this run file under Slurm. The file is read first, so that faults in it
/// do not wait in a queue.
CommandResult slurm_command(const SlurmCommandOptions& options);

}  // namespace lockstep::daemon
