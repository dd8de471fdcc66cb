#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "base/tensors/state_list.h"

namespace lockstep::checkpoint {

/// The two countings of a pruned tensor: its n elements, and its K kept ones, which a sparse save
/// stores close together in order. Over bits that live elsewhere and must outlive it.
class MaskIndex {
 public:
  /// `bits`: uint8, contiguous on the CPU, one bit an element (base/bits/bit_mask.h). Throws
  /// Error(kBug) if there are fewer.
  MaskIndex(const at::Tensor& bits, int64_t num_elements);

  int64_t num_kept() const { return num_kept_; }
  /// Which stored elements are those of a range.
  ElementRange stored(const ElementRange& elements) const;
  /// A range of elements of which exactly these are stored, with all pruned ones behind the last
  /// (up to the next kept one); those before the first belong to it if it is the first of all.
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
