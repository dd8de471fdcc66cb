#pragma once

#include <string>
#include <vector>

#include "launch/mpirun/hosts.h"

namespace lockstep::launch {

struct MpirunOptions {
  int num_ranks = 1;
  std::vector<Host> hosts;            ///< none: this host alone
  std::vector<std::string> program;   ///< with its arguments, the same for each rank
  std::vector<std::string> exported;  ///< names of variables that other hosts need
  std::vector<std::string> more;      ///< arguments for mpirun itself, after ours
  bool is_root = false;
};

/// Returns the command line that starts these ranks with Open MPI 4.1. launch/README.md explains
/// each argument.
std::vector<std::string> mpirun_command(const MpirunOptions& options);

}  // namespace lockstep::launch
