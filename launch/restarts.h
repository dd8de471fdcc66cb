#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launch/mpirun.h"

/// Decisions after a failure: whether to restart, and on which hosts.
namespace lockstep::launch {

/// Hosts of a run, and which of them have failed. A host that is unreachable, or lost with its
/// ranks, is excluded at once. A host on which a rank was killed twice in a row is excluded too.
/// Excluded hosts return only with a new supervisor.
class HostPool {
 public:
  /// `num_ranks`: ranks wanted. `min_ranks`: ranks that are enough to continue. Without hosts all
  /// ranks run on this host. Throws Error(kUsage) if the numbers do not fit together.
  HostPool(std::vector<Host> hosts, int num_ranks, int min_ranks);

  /// Records the host failures of the last start. A host is excluded only if the others have slots
  /// for min_ranks. Returns the newly excluded hosts.
  std::vector<std::string> note(const std::set<std::string>& lost,
                                const std::set<std::string>& killed_on);
  /// Hosts of the next start; num_ranks() is its number of ranks.
  const std::vector<Host>& hosts() const { return hosts_; }
  int num_ranks() const;
  /// True if too few slots are left, so that a lost host could not be excluded.
  bool is_short() const { return is_short_; }

 private:
  std::vector<Host> hosts_;
  int num_ranks_, min_ranks_;
  bool is_short_ = false;
  std::map<std::string, int> kills_in_a_row_;
};

/// True for mpirun's own exit codes. 1: a host was lost, or mpirun was asked to end. 255: ssh does
/// not reach a host.
bool is_launcher_fault(int exit_code);

/// Limits restarts and chooses the pause before each. A run that makes progress may fail any number
/// of times. Only consecutive restarts without a new checkpoint count.
class Restarts {
 public:
  explicit Restarts(int max_in_a_row) : max_in_a_row_(max_in_a_row) {}

  /// Returns the seconds to wait before the next start: 0 after the first failure, then 1, 2, 4 up
  /// to 30. nullopt if the limit is reached. `made_progress`: the failed start left a new
  /// checkpoint.
  std::optional<double> next_pause_s(bool made_progress);
  /// Returns the number of all restarts so far.
  int count() const { return count_; }
  int max_in_a_row() const { return max_in_a_row_; }

 private:
  int max_in_a_row_;
  int in_a_row_ = 0, count_ = 0;
};

}  // namespace lockstep::launch
