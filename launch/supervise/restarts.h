#pragma once

#include <optional>

namespace lockstep::launch {

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
