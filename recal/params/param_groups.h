#pragma once

#include <string>
#include <vector>

#include "base/tensors/param_group.h"

namespace lockstep::recal {

inline constexpr int kAllGroups = -1;
/// Text for messages: " of parameter group 1", or "" for all groups.
std::string of_group(int group);

/// Parameter groups of the optimizer that a modifier changes (`param_groups`).
struct ParamGroups {
  std::vector<int> numbers;  ///< ascending, each once; empty: all

  bool all() const { return numbers.empty(); }
  /// Returns the first number that is not a group of a run (base/tensors/param_group.h), or -1.
  int first_unknown() const;
  /// True if the list contains every group of a run and no other.
  bool names_each_known() const;
  /// Text for messages: " of parameter groups 0, 1", or "" for all groups.
  std::string text() const;
};

/// Text for messages: "0 (weights, which decay) and 1 (the rest: biases, normalisation)".
std::string known_param_groups();

}  // namespace lockstep::recal
