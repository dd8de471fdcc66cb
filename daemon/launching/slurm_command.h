#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/launching/above_file.h"
#include "daemon/launching/job_template.h"

namespace lockstep::daemon {

/// Slurm job that trains until the run is done.
struct SlurmJob {
  std::string name;                  ///< of the job, and of its log: NAME-<number>.log
  std::vector<std::string> program;  ///< command of each rank, with its arguments
  int num_nodes = 1;
  int ranks_per_node = 1;
  std::string time_limit = "24:00:00";  ///< in the form of sbatch --time
  int grace_s = 300;                    ///< seconds before the limit, to save and stop
  int max_requeues = 50;
  bool tells_kill_wait = true;          ///< sets preemption.grace_seconds to the cluster's KillWait
  int gpus_per_rank = 0;                ///< each rank sees only its own GPUs
  int cpus_per_rank = 0;                ///< 0: the cluster's default
  std::string mpi = "pmix";             ///< srun --mpi
  std::vector<std::string> directives;  ///< further directives, such as "--partition=long"
};

/// Fills in launch/slurm/job.sbatch. Throws Error(kUsage) for a job that sbatch or srun would
/// refuse and for an array. Also for a time limit not longer than the grace.
std::string sbatch_script(const SlurmJob& job);

/// Seconds of a time as sbatch's --time takes it: minutes, minutes:seconds, hours:minutes:seconds,
/// days-hours, days-hours:minutes, days-hours:minutes:seconds. 0: no limit (0, UNLIMITED,
/// INFINITE). nullopt for any other text.
std::optional<int64_t> slurm_time_s(const std::string& text);

/// The command line of `lockstep launch slurm`.
struct SlurmCommandOptions {
  std::string config_file;
  AboveFile above;
  std::string program;   ///< command of each rank; empty: the lockstepd next to this program
  std::string out_file;  ///< empty: the script becomes the command's text
  SlurmJob job;          ///< name and program are filled in here
};

/// Returns the script that trains this run file under Slurm. Reads the file first, so its faults
/// are found before the job waits in a queue.
CommandResult slurm_command(const SlurmCommandOptions& options);

}  // namespace lockstep::daemon
