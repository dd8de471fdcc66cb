#pragma once

#include <set>
#include <string>
#include <vector>

#include "launch/mpirun/hosts.h"
#include "launch/processes/child.h"

namespace lockstep::launch {

/// Those on which mpirun cannot start a program and hear of its end within `limit_s`: it goes the
/// way that the ranks go. All are asked at once.
std::set<std::string> unreachable(const std::vector<Host>& hosts,
                                  const std::vector<std::string>& mpirun_arguments,
                                  const Child::Variables& variables, double limit_s);

}  // namespace lockstep::launch
