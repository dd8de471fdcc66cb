#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/state_list.h"

namespace lockstep::checkpoint {

/// One tensor or text as it stands in a save, under its name in the index.
struct StoredTensor {
  std::string name;
  int32_t dtype = 0;           ///< as in tensor_type.h
  std::vector<int64_t> shape;  ///< as stored: [K] where only kept elements are
  int64_t element_bytes = 0;   ///< 0 for a text
  at::Tensor tensor;           ///< undefined for a text
  std::string text;
  /// Stored elements that this rank holds, where the tensor is divided over the ranks.
  std::optional<std::vector<ElementRange>> held;
  /// Elements of the tensor that this rank holds, where only kept ones are stored and divided.
  std::optional<std::vector<ElementRange>> held_dense;
  /// Defined: of the tensor's elements only those of set bits are stored. On the CPU, contiguous.
  at::Tensor kept_bits;

  bool is_text() const { return !tensor.defined(); }
  bool is_divided() const { return held.has_value(); }
  int64_t num_elements() const;
  /// Texts count 0 bytes, so that the plan never depends on values.
  int64_t num_bytes() const { return num_elements() * element_bytes; }
};

/// All pieces of a save: the caller's state, then what TensorFlow wants beside it. With `sparse`, a
/// tensor with a mask becomes its kept values and a text that tells its shape and mask
/// (docs/checkpoint_format.md, Sparse tensors).
///
/// Throws Error(kConfig) for a tensor that has no form in a save; Error(kBug) for bad or repeated
/// keys.
std::vector<StoredTensor> save_pieces(const StateList& state, int64_t number, bool sparse);

/// Names, types and shapes in a few words, equal on two ranks only if those are.
std::string summary(const std::vector<StoredTensor>& pieces, int64_t number);

/// Bytes that the tensors would take with every element stored.
int64_t dense_bytes(const std::vector<StoredTensor>& pieces);

}  // namespace lockstep::checkpoint
