#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep::launch {

/// A job of Slurm that trains until it is done.
struct SlurmJob {
  std::string name;                  ///< of the job, and of its log: NAME-<number>.log
  std::vector<std::string> program;  ///< what each rank runs, with its arguments
  int num_nodes = 1;
  int ranks_per_node = 1;
  std::string time_limit = "24:00:00";  ///< as sbatch takes it
  int grace_s = 300;                    ///< before the limit, to save and stop
  int max_requeues = 50;
  bool tells_kill_wait = true;  ///< as preemption.grace_seconds: when SIGKILL follows SIGTERM here
  int gpus_per_rank = 0;        ///< each rank sees only its own
  std::optional<int> cpus_per_rank;
  std::string mpi = "pmix";             ///< srun --mpi
  std::vector<std::string> directives;  ///< further ones, such as "--partition=long"
};

/// The script for sbatch. Before the time limit the ranks are told to save and stop (SIGUSR1);
/// where they end with 75, or are lost (ExitClass::kTransient), the job queues itself again,
/// max_requeues times at most, and goes on from the newest save. Any other code is the job's.
/// Throws Error(kUsage) for what is no job: numbers below 1, no time limit or one that is not
/// longer than the grace, a name or directive with a line break.
std::string sbatch_script(const SlurmJob& job);

}  // namespace lockstep::launch
