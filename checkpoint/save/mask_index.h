#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "base/tensors/state_list.h"

namespace lockstep::checkpoint {

/// Index of a mask: converts between positions among all n elements of a pruned tensor and
/// positions among its K kept ones, which are all that a sparse checkpoint stores. The bits must
/// outlive it.
class MaskIndex {
 public:
  /// `bits`: uint8, contiguous on the CPU, one bit an element (base/bits/bit_mask.h). Throws
  /// Error(kBug) if there are fewer.
  MaskIndex(const at::Tensor& bits, int64_t num_elements);

  int64_t num_kept() const { return num_kept_; }
  /// Positions among the kept elements of the kept elements in a range.
  ElementRange stored(const ElementRange& elements) const;
  /// The range of elements whose kept ones are exactly `stored`. Pruned elements after its last
  /// kept one belong to it; pruned elements before its first do if it starts the tensor.
  ElementRange elements(const ElementRange& stored) const;

  /// Packs the kept elements of that range, of `item_bytes` each; false if a pruned one is not +0,
  /// so that packing would lose it.
  bool pack(const char* items, const ElementRange& elements, int item_bytes, char* packed) const;

 private:
  int64_t num_before(int64_t element) const;
  int64_t element_of(int64_t stored) const;

  const uint8_t* bits_;
  int64_t num_elements_;
  int64_t num_kept_;
};

}  // namespace lockstep::checkpoint
