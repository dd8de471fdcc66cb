#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace lockstep::train {

/// Tells of updates that were skipped because something was not finite: at once of the first, then
/// at most once a minute, with their number.
class SkippedUpdates {
 public:
  /// A steady clock's seconds; empty: the system's.
  explicit SkippedUpdates(std::function<double()> clock_s = {});

  /// `step`: the update that was skipped, from 1. `why`: "the loss of rank 1 is not finite".
  /// Returns what to log; nothing in the minute after the last one.
  std::optional<std::string> add(int64_t step, const std::string& what);

 private:
  std::function<double()> clock_s_;
  int64_t num_skipped_ = 0;
  std::optional<double> told_at_s_;
};

}  // namespace lockstep::train
