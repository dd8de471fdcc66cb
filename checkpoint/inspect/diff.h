#pragma once

#include <string>

#include "checkpoint/inspect/inspect.h"

namespace lockstep::checkpoint {

struct DiffOptions {
  bool json = false;
  std::string under = {};  ///< only keys that are this or are below it (model); empty: all
};

/// Compares two checkpoints tensor by tensor; slices, shards and masks make no difference. `a` and
/// `b` are folders (their newest complete checkpoints) or prefixes. `ok` is false if they differ.
///
/// JSON, in name order: {"a", "b", "equal", "tensors": [{"key", "verdict", "form_a", "form_b",
/// "num_elements", "num_different", "max_difference", "sparsity_a", "sparsity_b"}]}.
/// - key: the state key, or the name if there is none.
/// - verdict: same | differs | other_form | only_in_a | only_in_b.
/// - form_a, form_b: "float32 [2, 3]", null if the checkpoint lacks the tensor.
/// - the last five: null unless both are numbers of one form; see
///   checkpoint/inspect/tensor_difference.h; "nan" and "inf" as texts. Sparsity is the share of
///   zeros.
///
/// Throws Error(kInputMissing, kBadData) as BundleReader, kUsage if `under` matches nothing.
Answer diff_saves(const std::string& a, const std::string& b, const DiffOptions& options);

}  // namespace lockstep::checkpoint
