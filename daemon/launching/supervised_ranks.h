#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "launch/supervise/supervisor.h"

namespace lockstep::daemon {

/// The ranks that `lockstep run` and `lockstep serve` start and look after.
struct RanksOptions {
  int num_ranks = 0;  ///< 0: the hosts' slots, 1 without hosts
  int min_ranks = 0;  ///< 0: num_ranks
  std::string hosts;  ///< launch::parse_hosts(); empty: this host
  int max_restarts = 3;
  int num_spares = 0;  ///< 0 or 1
  double grace_s = 30;
  std::string program;  ///< what each rank runs; empty: the lockstepd beside this program
};

/// Those of LOCKSTEP_MPIRUN_ARGS.
std::vector<std::string> mpirun_arguments();

/// Of --hosts: launch::parse_hosts(), all different ones; none where the text is empty. Throws
/// Error(kUsage).
std::vector<launch::Host> hosts_of(const std::string& text);

/// Whether no rank runs on another host.
bool runs_here(const RanksOptions& options);

/// What each rank runs. Throws Error: kUnavailable, and kInputMissing where all run here and it
/// cannot be started.
std::string rank_program(const RanksOptions& options);

/// launch::supervise() with these options and mpirun_arguments(). The others are
/// those of launch::SupervisorOptions. Its exit code.
int supervise_ranks(const RanksOptions& options, const std::filesystem::path& folder,
                    std::function<std::vector<std::string>(bool is_restart)> program,
                    std::function<launch::SaveFound()> newest_save,
                    std::function<bool(int exit_code)> settle = {});

}  // namespace lockstep::daemon
