#pragma once

#include <optional>
#include <vector>

#include <sys/types.h>

namespace lockstep::launch {

inline constexpr double kKillPatience_s = 10;  ///< for kill_descendants()

/// From now on descendants whose parents end become children of this process, so that none of them
/// gets out of sight.
void adopt_orphans();

/// Takes the exit codes of children that have ended, but for `others`, whose owners want them: what
/// adopt_orphans() has brought stays a zombie else.
void reap_orphans(const std::vector<pid_t>& others);

/// All descendants of this process that run, zombies left out, and `spared` with all below it; in
/// no order.
std::vector<pid_t> descendants(pid_t spared = -1);

/// Those of them that have this variable in the environment that they were started with.
std::vector<pid_t> descendants_with(const char* variable, pid_t spared = -1);

/// Nothing for a process that has ended, zombies too.
std::optional<pid_t> parent_of(pid_t pid);

/// Whether the process catches this signal, holds or ignores it: false while it would die of it,
/// and for one that has ended.
bool hears_signal(pid_t pid, int signal_number);

/// SIGKILL to all descendants until none is left; false if some still are after `patience_s`
/// (a process that waits for a dead disk cannot be ended).
bool kill_descendants(double patience_s, pid_t spared = -1);

}  // namespace lockstep::launch
