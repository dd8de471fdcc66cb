#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/tensor_slice.h"

/// Contents of a bundle's index (docs/design/checkpoint_format.md, Index).
namespace lockstep::checkpoint {

/// Position of a tensor's or slice's bytes in a shard.
struct BundlePlace {
  int32_t shard = 0;
  int64_t offset = 0;
  int64_t num_bytes = 0;
  uint32_t masked_crc = 0;

  int64_t end() const { return offset + num_bytes; }
};

/// Slice of a tensor. Its elements are in the box's own row-major order.
struct BundleSlice : BundlePlace {
  TensorBox box;
};

/// One tensor. decode_index() has checked the values, which come from a file. A whole tensor has
/// its bytes at its own place. A sliced tensor has them at the places of its slices, and its own
/// place is unused. The slices cover the tensor, each element exactly once.
struct BundleEntry : BundlePlace {
  int32_t dtype = 0;           ///< type number as in tensor_type.h
  std::vector<int64_t> shape;  ///< no dimension is negative
  std::vector<BundleSlice> slices;

  bool is_sliced() const { return !slices.empty(); }
  /// Returns the product of the shape; 1 for a scalar.
  int64_t num_elements() const;
};

struct BundleIndex {
  int32_t num_shards = 1;
  std::map<std::string, BundleEntry> entries;  ///< by name
};

/// Returns the bytes of the index file. Equal input gives equal bytes.
std::string encode_index(const BundleIndex& index);

/// Reads an index and checks all that needs no shard: types, dimensions, overflow, size against
/// shape, shard numbers. Throws Error(kBadData) with `file` and the tensor's name.
BundleIndex decode_index(std::string_view bytes, const std::string& file);

}  // namespace lockstep::checkpoint
