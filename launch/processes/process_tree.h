#pragma once

#include <vector>

#include <sys/types.h>

namespace lockstep::launch {

inline constexpr double kKillPatience_s = 10;  ///< for kill_descendants()

/// From now on descendants whose parents end become children of this process, so that none of them
/// gets out of sight.
void adopt_orphans();

/// All descendants of this process that run, zombies left out, and `spared` with all below it; in
/// no order.
std::vector<pid_t> descendants(pid_t spared = -1);

/// Those of them that have this variable in the environment that they were started with.
std::vector<pid_t> descendants_with(const char* variable, pid_t spared = -1);

/// SIGKILL to all descendants until none is left; false if some still are after `patience_s`
/// (a process that waits for a dead disk cannot be ended).
bool kill_descendants(double patience_s, pid_t spared = -1);

}  // namespace lockstep::launch
