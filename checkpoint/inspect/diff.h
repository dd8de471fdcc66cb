#pragma once

#include <string>

#include "checkpoint/inspect/inspect.h"

namespace lockstep::checkpoint {

struct DiffOptions {
  bool json = false;
  std::string under = {};  ///< only keys that are this or lie under it (model); empty: all
};

/// Compares two saves tensor by tensor, whatever slices, shards or masks hold them. `a` and `b` are
/// folders (their newest complete saves) or prefixes. `ok` is false if they differ.
///
/// JSON: {"a", "b", "equal", "tensors": [{"key", "verdict", "form_a", "form_b", "num_elements",
/// "num_different", "max_difference", "sparsity_a", "sparsity_b"}]}, in name order. key: the state
/// key, or the name if it is none; verdict: same | differs | other_form | only_in_a | only_in_b;
/// form: "float32 [2, 3]", null where the save lacks the tensor. The last five are null unless both
/// are numbers of one form; see checkpoint/inspect/tensor_difference.h; "nan" and "inf" as texts.
/// Sparsity: share of zeros.
///
/// Throws Error(kInputMissing, kBadData) as BundleReader, kUsage if `under` matches nothing.
Answer diff_saves(const std::string& a, const std::string& b, const DiffOptions& options);

}  // namespace lockstep::checkpoint
