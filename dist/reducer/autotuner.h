#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <vector>

#include "dist/communicator.h"

namespace lockstep::dist {

/// Seconds of one item (a bucket, or a whole step) in one step on this rank.
struct ItemSeconds {
  double alone_s = 0;     ///< this rank's own work
  double together_s = 0;  ///< inside collectives, including the wait for later ranks
};

/// Decides by measurement which of two ways is faster, for each of several items. Steps use the
/// first and the second way alternately, kRounds times each, after one uncounted step of each. Then
/// the ranks agree on one result.
///
/// The time of an item in a step is the largest alone_s of the ranks plus the smallest together_s.
/// The last rank to enter a collective waits for no other, so its time is that of the transfer
/// itself. Each way is judged by its median over the rounds; the first way wins a tie.
class Autotuner {
 public:
  static constexpr int kRounds = 5;

  /// Starts a new trial and discards all measurements. num_items = 0: nothing to measure.
  void start(size_t num_items);
  bool is_running() const { return num_items_ > 0; }
  /// True if the current step must use the second way.
  bool takes_second() const { return is_running() && num_steps_ % 2 == 1; }

  /// Records the step's times, by item. After the last step the trial ends. The result says for
  /// each item whether the second way is faster; it is equal on all ranks. That last call is
  /// collective (one all_reduce), so all ranks make the same calls.
  std::optional<std::vector<bool>> add_step(const std::vector<ItemSeconds>& items,
                                            Communicator& comm);

 private:
  std::vector<bool> verdict(Communicator& comm);

  size_t num_items_ = 0;
  int num_steps_ = 0;
  std::vector<ItemSeconds> steps_;  ///< [2 * kRounds * items], step by step
};

}  // namespace lockstep::dist
