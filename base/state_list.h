#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// One named piece of what a save holds. The owner keeps the memory; a save reads it, a restore
/// writes into it.
struct StateEntry {
  std::string key;    ///< path with slashes: model/blocks/0/conv/weight; beside the object graph:
                      ///< _lockstep/step
  at::Tensor tensor;  ///< live memory, CPU or device; undefined for a text
  std::string* text = nullptr;  ///< live text; null for a tensor
  /// What a tensor is filled with if a save lacks it (a text becomes empty, whatever stands here);
  /// nothing: it must be there.
  std::optional<double> value_if_missing;
};

/// Each part lists its own state; the trainer joins the lists. Order is the owner's, the same on
/// every rank.
using StateList = std::vector<StateEntry>;

/// A 0-dimensional int64 tensor over the number's own memory, so that numbers are saved and
/// restored like tensors. The number must outlive the tensor.
at::Tensor view_of(int64_t* number);

}  // namespace lockstep
