#pragma once

#include <vector>

#include <sys/types.h>

namespace lockstep::launch {

/// From now on descendants whose parents end become children of this process, so that none of them
/// gets out of sight.
void adopt_orphans();

/// All descendants of this process that run, zombies left out; in no order.
std::vector<pid_t> descendants();

/// Whether one of them has this variable in the environment that it was started with.
bool any_descendant_has(const char* variable);

/// SIGKILL to all descendants until none is left; false if some still are after `patience_s`
/// (a process that waits for a dead disk cannot be ended).
bool kill_descendants(double patience_s);

}  // namespace lockstep::launch
