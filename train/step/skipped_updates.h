#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace lockstep::train {

/// Limits messages about updates skipped because something was not finite. The first is logged at
/// once, later ones at most once a minute, with their number.
class SkippedUpdates {
 public:
  /// clock_s: seconds of a steady clock; empty: the system's.
  explicit SkippedUpdates(std::function<double()> clock_s = {});

  /// Counts a skipped update. `step`: its number, from 1. `why`: such as "the loss of rank 1 is
  /// not finite". Returns the text to log; nullopt within a minute after the last one.
  std::optional<std::string> add(int64_t step, const std::string& why);

 private:
  std::function<double()> clock_s_;
  int64_t num_skipped_ = 0;
  std::optional<double> told_at_s_;
};

}  // namespace lockstep::train
