#pragma once

#include <optional>

namespace lockstep::launch {

/// Whether this is mpirun's own exit code: 1 for a host that is lost or an end that was asked of
/// it, 255 for one that ssh does not reach.
bool is_launcher_fault(int exit_code);

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
