#pragma once

#include <optional>
#include <vector>

#include <sys/types.h>

namespace lockstep::launch {

inline constexpr double kKillPatience_s = 10;  ///< for kill_descendants()

/// Makes this process the parent of descendants whose own parents end (subreaper). So none of them
/// can escape from its view.
void adopt_orphans();

/// Collects the exit codes of ended children except `others`, whose owners collect them. Adopted
/// orphans would otherwise remain zombies.
void reap_orphans(const std::vector<pid_t>& others);

/// Returns all running descendants of this process, in no order. Without zombies, and without
/// `spared` and its descendants.
std::vector<pid_t> descendants(pid_t spared = -1);

/// Returns the descendants that were started with this environment variable.
std::vector<pid_t> descendants_with(const char* variable, pid_t spared = -1);

/// Returns the parent of a process; nullopt if it has ended or is a zombie.
std::optional<pid_t> parent_of(pid_t pid);

/// True if the process catches, blocks or ignores this signal. False if the signal would end it, or
/// if it has ended.
bool hears_signal(pid_t pid, int signal_number);

/// Sends SIGKILL to all descendants until none is left. Returns false if some remain after
/// `patience_s`: a process that waits for a dead disk cannot be ended.
bool kill_descendants(double patience_s, pid_t spared = -1);

}  // namespace lockstep::launch
