#pragma once

#include <optional>

namespace lockstep::launch {

/// mpirun's own exit code, for a host that it cannot reach or an end that was asked of it.
inline constexpr int kLauncherFault = 1;

/// Whether a run that ended with this code may be begun again without a person: lost peers, hangs
/// and killed processes; not faults of the run file, the data or the hosts' disks, and not what was
/// asked for (docs/exit_codes.md).
bool is_worth_another_try(int exit_code);

/// How often a run is begun again, and after what pause. A run that gets on may fail as often as it
/// likes: only restarts in a row that brought no new save are counted.
class Restarts {
 public:
  explicit Restarts(int max_in_a_row) : max_in_a_row_(max_in_a_row) {}

  /// Seconds to wait before the next start: none after the first failure, then 1, 2, 4 up to 30.
  /// Nothing if there have been enough. `made_progress`: the start that failed left a new save.
  std::optional<double> next_pause_s(bool made_progress);
  /// Of all restarts so far.
  int count() const { return count_; }
  int max_in_a_row() const { return max_in_a_row_; }

 private:
  int max_in_a_row_;
  int in_a_row_ = 0, count_ = 0;
};

}  // namespace lockstep::launch
