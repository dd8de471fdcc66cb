#pragma once

#include <set>
#include <string>
#include <vector>

#include "launch/mpirun/hosts.h"
#include "launch/processes/child.h"

namespace lockstep::launch {

/// Returns the hosts on which mpirun cannot start a program and detect its end within `limit_s`.
/// This takes the same way as the start of ranks. All hosts are tried at once.
std::set<std::string> unreachable(const std::vector<Host>& hosts,
                                  const std::vector<std::string>& mpirun_arguments,
                                  const Child::Variables& variables, double limit_s);

}  // namespace lockstep::launch
