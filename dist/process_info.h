#pragma once

#include <functional>
#include <optional>
#include <string>

namespace lockstep::dist {

/// Who this process is among its peers.
struct ProcessInfo {
  int rank = 0;  ///< in [0, world_size)
  int world_size = 1;
  int local_rank = 0;        ///< among the ranks of this node
  int local_world_size = 1;  ///< ranks on this node; 0: the launcher does not say
  int num_nodes = 1;         ///< 0: the launcher does not say
  std::string node;          ///< host name
  std::string launcher;      ///< mpirun, srun, torchrun, none; after MPI's start: mpi
};

/// Looks up one environment variable.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
std::optional<std::string> process_environment(const std::string& name);

/// Of this host, as the system says it; "unknown" if it does not.
std::string host_name();

/// What the launcher's variables say, for use before MPI is up (log lines, `lockstep check`):
/// OMPI_COMM_WORLD_* of mpirun, else PMIX_RANK and SLURM_* of srun, else RANK, WORLD_SIZE, ... of
/// torchrun, else a world of one. mpi::World::process_info() is the truth once MPI runs. Throws
/// Error(kConfig) naming the variable if one holds no whole number or rank and size do not fit.
ProcessInfo read_process_info(const Environment& environment = process_environment);

/// Throws Error(kConfig) on every rank if the launcher's variables, read before MPI was up, promise
/// more ranks than MPI has joined: each would train alone.
void require_promised_ranks(const ProcessInfo& promised, int world_size);

/// Warns where nobody starts several ranks though Slurm has given several tasks.
void warn_of_idle_tasks(const ProcessInfo& info,
                        const Environment& environment = process_environment);

}  // namespace lockstep::dist
