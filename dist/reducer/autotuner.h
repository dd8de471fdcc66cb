#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <vector>

#include "dist/communicator.h"

namespace lockstep::dist {

/// Time of one item (a bucket, or a whole step) in one step on this rank.
struct ItemSeconds {
  double alone_s = 0;     ///< this rank's own work
  double together_s = 0;  ///< inside collectives, waiting for later ranks included
};

/// Autotuner: decides by time which of two ways is faster, for each of several items. Steps take
/// the first and the second way in turn, kRounds times each, after one step of each that does not
/// count. Then the ranks agree on one verdict.
///
/// An item's time in a step is the largest alone_s of the ranks plus the smallest together_s: the
/// rank that comes last to a collective waits for nobody, and only the transfer itself may decide.
/// The median over the rounds stands for a way; the first way wins a tie.
class Autotuner {
 public:
  static constexpr int kRounds = 5;

  /// Begins anew; what was measured is forgotten. No items: nothing to find out.
  void start(size_t num_items);
  bool is_running() const { return num_items_ > 0; }
  /// Whether the step under way takes the second way.
  bool takes_second() const { return is_running() && num_steps_ % 2 == 1; }

  /// The step's times, by item. After the last step the trial is over and the result tells for each
  /// item whether the second way is faster, equal on all ranks; that call is collective (one
  /// all_reduce), so all ranks make the same calls.
  std::optional<std::vector<bool>> add_step(const std::vector<ItemSeconds>& items,
                                            Communicator& comm);

 private:
  std::vector<bool> verdict(Communicator& comm);

  size_t num_items_ = 0;
  int num_steps_ = 0;
  std::vector<ItemSeconds> steps_;  ///< [2 * kRounds * items], step by step
};

}  // namespace lockstep::dist
