#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/state_list.h"

namespace lockstep::checkpoint {

/// One tensor or text in its stored form, under its index name.
struct StoredTensor {
  std::string name;
  int32_t dtype = 0;           ///< type number as in tensor_type.h
  std::vector<int64_t> shape;  ///< as stored: [K] if only kept elements are
  int64_t element_bytes = 0;   ///< 0 for a text
  at::Tensor tensor;           ///< undefined for a text
  std::string text;
  /// Stored elements that this rank holds, if the tensor is divided over the ranks.
  std::optional<std::vector<ElementRange>> held;
  /// Elements of the dense tensor that this rank holds, if only kept ones are stored and they are
  /// divided.
  std::optional<std::vector<ElementRange>> held_dense;
  /// Mask: if defined, only elements with set bits are stored. On the CPU, contiguous.
  at::Tensor kept_bits;

  bool is_text() const { return !tensor.defined(); }
  bool is_divided() const { return held.has_value(); }
  int64_t num_elements() const;
  /// Returns the size in bytes. Texts count 0, so that the plan never depends on values.
  int64_t num_bytes() const { return num_elements() * element_bytes; }
};

/// Returns all pieces of a checkpoint: the caller's state, then TensorFlow's own entries. With
/// `sparse`, a tensor with a mask becomes its kept values and a text with shape and mask name.
/// docs/checkpoint_format.md, Sparse tensors, describes both.
///
/// Throws Error(kConfig) for a tensor that cannot be stored; Error(kBug) for invalid or repeated
/// keys.
std::vector<StoredTensor> save_pieces(const StateList& state, int64_t number, bool sparse);

/// Returns a short digest of names, types and shapes. Equal digests on two ranks mean equal pieces.
std::string summary(const std::vector<StoredTensor>& pieces, int64_t number);

/// Returns the size in bytes of the tensors with every element stored.
int64_t dense_bytes(const std::vector<StoredTensor>& pieces);

}  // namespace lockstep::checkpoint
