#pragma once

#include <string>
#include <vector>

#include "base/tensors/param_group.h"

namespace lockstep::recal {

inline constexpr int kAllGroups = -1;
/// " of parameter group 1", nothing for all groups: for texts.
std::string of_group(int group);

/// The optimizer's parameter groups that a modifier writes (`param_groups`).
struct ParamGroups {
  std::vector<int> numbers;  ///< ascending, each once; empty: all

  bool all() const { return numbers.empty(); }
  /// The first number that no group of a run has (base/tensors/param_group.h), or -1.
  int first_unknown() const;
  /// True if every group of a run is named, and no other.
  bool names_each_known() const;
  /// " of parameter groups 0, 1", nothing for all.
  std::string text() const;
};

/// "0 (weights, which decay) and 1 (the rest: biases, normalisation)": for messages.
std::string known_param_groups();

}  // namespace lockstep::recal
