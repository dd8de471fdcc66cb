#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "launch/supervisor.h"

/// Ranks that the tool starts and supervises: options, program, calls of the supervisor.
namespace lockstep::launch {

/// True if some folder of PATH contains this executable file.
bool is_command(const std::string& program);

/// Returns the command of each rank: `wanted`, or if that is empty, the lockstepd next to this
/// program. Throws Error(kUnavailable) if there is none.
std::string rank_program(const std::string& wanted);

/// Options of the ranks that `lockstep run` and `lockstep serve` start and supervise.
struct RanksOptions {
  int num_ranks = 0;  ///< 0: the hosts' slots, 1 without hosts
  int min_ranks = 0;  ///< 0: num_ranks
  std::string hosts;  ///< parse_hosts(); empty: this host
  int max_restarts = 3;
  int num_spares = 0;
  double grace_s = 30;
  std::string program;  ///< command of each rank; empty: the lockstepd next to this program
};

/// Returns the arguments in LOCKSTEP_MPIRUN_ARGS.
std::vector<std::string> mpirun_arguments();

/// Parses --hosts with parse_hosts(). All hosts must differ; an empty text gives none.
/// Throws Error(kUsage).
std::vector<Host> hosts_of(const std::string& text);

/// True if all ranks run on this host.
bool runs_here(const RanksOptions& options);

/// Returns the command of each rank. Throws Error(kUnavailable). If all ranks run here and the
/// program cannot be started, throws kInputMissing.
std::string rank_program(const RanksOptions& options);

/// Calls supervise() with these options and mpirun_arguments(), and returns its exit code.
/// The other arguments are those of SupervisorOptions.
int supervise_ranks(const RanksOptions& options, const std::filesystem::path& folder,
                    std::function<std::vector<std::string>(bool is_restart)> program,
                    std::function<SaveFound()> newest_save,
                    std::function<bool(int exit_code)> settle = {});

}  // namespace lockstep::launch
