#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::dist {

/// Spare processes of a world, and the ranks whose places they have taken so far.
struct Spares {
  int num_left = 0;                 ///< processes that still wait for a place
  int num_ended = 0, num_hung = 0;  ///< lost ranks: the process ended, or was killed as it hung
};

/// Process of a rank.
struct RankProcess {
  std::string node;  ///< host name
  int pid = 0;
};

/// Identity of this process among its peers.
struct ProcessInfo {
  int rank = 0;  ///< in [0, world_size)
  int world_size = 1;
  int local_rank = 0;                 ///< among the ranks of this node
  int local_world_size = 1;           ///< ranks on this node; 0: unknown to the launcher
  int num_nodes = 1;                  ///< 0: unknown to the launcher
  std::string node;                   ///< host name
  std::string launcher;               ///< mpirun, srun, torchrun, none; after MPI's start: mpi
  std::optional<Spares> spares = {};  ///< set if the world began with some
  std::vector<RankProcess> processes_N = {};  ///< by rank; once MPI runs
};

/// Looks up one environment variable.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
std::optional<std::string> process_environment(const std::string& name);

/// Reads the launcher's variables, for use before MPI is up (log lines, `lockstep check`).
/// OMPI_COMM_WORLD_* of mpirun, else PMIX_RANK and SLURM_* of srun, else RANK, WORLD_SIZE, ... of
/// torchrun, else a world of one. Once MPI runs, mpi::World::process_info() is authoritative.
/// Throws Error(kConfig) naming the variable if one contains no whole number, or if rank and size
/// do not fit.
ProcessInfo read_process_info(const Environment& environment = process_environment);

/// Throws Error(kConfig) on every rank if the launcher's variables, read before MPI was up, promise
/// more ranks than MPI has joined. Each rank would otherwise train alone.
void require_promised_ranks(const ProcessInfo& promised, int world_size);

/// Warns if Slurm allocated several tasks but no launcher starts several ranks.
void warn_of_idle_tasks(const ProcessInfo& info,
                        const Environment& environment = process_environment);

}  // namespace lockstep::dist
