#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "base/tensors/state_list.h"

namespace lockstep::checkpoint {

/// Index of a mask. It converts between positions among all n elements of a pruned tensor and
/// positions among its K kept ones. A sparse checkpoint stores only the kept ones. The bits must
/// outlive the index.
class MaskIndex {
 public:
  /// Builds the index. `bits`: uint8, contiguous on the CPU, one bit per element
  /// (base/bits/bit_mask.h). Throws Error(kBug) if their number is wrong.
  MaskIndex(const at::Tensor& bits, int64_t num_elements);

  int64_t num_kept() const { return num_kept_; }
  /// Returns the positions among the kept elements of a range's kept elements.
  ElementRange stored(const ElementRange& elements) const;
  /// Returns the range of elements whose kept ones are exactly `stored`. It includes the pruned
  /// elements after each kept one. The range of the first kept element also includes the pruned
  /// ones before it.
  ElementRange elements(const ElementRange& stored) const;

  /// Packs the kept elements of the range, each of `item_bytes` bytes. Returns false if a pruned
  /// element is not +0, because packing would lose it.
  bool pack(const char* items, const ElementRange& elements, int item_bytes, char* packed) const;

 private:
  int64_t num_before(int64_t element) const;
  int64_t element_of(int64_t stored) const;

  const uint8_t* bits_;
  int64_t num_elements_;
  int64_t num_kept_;
};

}  // namespace lockstep::checkpoint
