#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// Elements [begin_E, end_E) of a tensor in row-major order.
struct ElementRange {
  int64_t begin_E = 0, end_E = 0;

  int64_t num_elements() const { return end_E - begin_E; }
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

/// One named part of a checkpoint's content. The owner keeps the memory: a save reads it, a restore
/// writes into it.
struct StateEntry {
  std::string key;    ///< path with slashes: model/blocks/0/conv/weight; outside the object graph:
                      ///< _lockstep/step
  at::Tensor tensor;  ///< live memory, CPU or device; undefined for a text
  std::string* text = nullptr;  ///< live text; null for a tensor
  /// Value that fills a tensor if a checkpoint lacks it; a text becomes empty in any case. nullopt:
  /// it must not be missing.
  std::optional<double> value_if_missing = std::nullopt;
  /// Elements of a sharded tensor that this rank owns: ascending ranges that do not touch. Together
  /// the ranks own each element once. Other elements are neither saved from this rank nor restored
  /// to it. nullopt: the tensor is not sharded.
  std::optional<std::vector<ElementRange>> held = std::nullopt;
  /// Mask that prunes the tensor, with bits as in base/simd/bit_mask.h, the same on all ranks. It
  /// is live memory of the entry `kept_key` of the same list. Pruned elements are +0. Undefined: no
  /// mask.
  at::Tensor kept_bits = {};
  std::string kept_key = {};
  /// True if the tensor changes only in the optimizer's update and when masks change. A save may
  /// then read it during the next forward and backward pass.
  bool steady = false;
};

/// State of one part; the trainer joins the lists of all parts. The owner chooses the order, the
/// same on every rank.
using StateList = std::vector<StateEntry>;

/// Returns a 0-dimensional int64 tensor over the number's own memory, so that numbers are saved and
/// restored like tensors. The number must outlive the tensor.
at::Tensor view_of(int64_t* number);

}  // namespace lockstep
