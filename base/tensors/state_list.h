#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// Elements begin_E to end_E (not included) of a tensor, counted in row-major order.
struct ElementRange {
  int64_t begin_E = 0, end_E = 0;

  int64_t num_elements() const { return end_E - begin_E; }
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

/// One named piece of what a save holds. The owner keeps the memory; a save reads it, a restore
/// writes into it.
struct StateEntry {
  std::string key;    ///< path with slashes: model/blocks/0/conv/weight; beside the object graph:
                      ///< _lockstep/step
  at::Tensor tensor;  ///< live memory, CPU or device; undefined for a text
  std::string* text = nullptr;  ///< live text; null for a tensor
  /// What a tensor is filled with if a save lacks it (a text becomes empty, whatever stands here);
  /// nothing: it must be there.
  std::optional<double> value_if_missing = std::nullopt;
  /// Elements of a sharded tensor that this rank owns: ascending ranges that do not touch. Together
  /// the ranks own each element once. Other elements are neither saved from this rank nor restored
  /// to it. Nothing: the tensor is not sharded.
  std::optional<std::vector<ElementRange>> held = std::nullopt;
  /// The mask that prunes the tensor: bits as in base/bits/bit_mask.h, the same on all ranks, live
  /// memory of the entry `kept_key` of the same list. Pruned elements are +0. Undefined: there is
  /// none.
  at::Tensor kept_bits = {};
  std::string kept_key = {};
  /// Changes in the optimizer's update and when masks change, at no other time; so that a save may
  /// read it while the next forward and backward pass run.
  bool steady = false;
};

/// Each part lists its own state; the trainer joins the lists. Order is the owner's, the same on
/// every rank.
using StateList = std::vector<StateEntry>;

/// A 0-dimensional int64 tensor over the number's own memory, so that numbers are saved and
/// restored like tensors. The number must outlive the tensor.
at::Tensor view_of(int64_t* number);

}  // namespace lockstep
