#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/bundle/tensor_box.h"

/// What an index says (docs/checkpoint_format.md, Index).
namespace lockstep::checkpoint {

/// Where bytes lie.
struct BundlePlace {
  int32_t shard = 0;
  int64_t offset = 0;
  int64_t num_bytes = 0;
  uint32_t masked_crc = 0;

  int64_t end() const { return offset + num_bytes; }
};

/// Part of a tensor, with its elements in the box's own row-major order.
struct BundleSlice : BundlePlace {
  TensorBox box;
};

/// One tensor. Values come from a file and have been checked by decode_index(). Its bytes lie at
/// its own place, or, if it has slices, at theirs: then its own place means nothing, and the slices
/// make up the whole tensor, each element once.
struct BundleEntry : BundlePlace {
  int32_t dtype = 0;           ///< number as in tensor_type.h
  std::vector<int64_t> shape;  ///< no dimension negative
  std::vector<BundleSlice> slices;

  bool is_sliced() const { return !slices.empty(); }
  /// Product of the shape: 1 for a scalar.
  int64_t num_elements() const;
};

struct BundleIndex {
  int32_t num_shards = 1;
  std::map<std::string, BundleEntry> entries;  ///< by name
};

/// The bytes of the index file, equal for equal input.
std::string encode_index(const BundleIndex& index);

/// Reads and checks everything that can be checked without the shards: types, dimensions, overflow,
/// size against shape, shard numbers. Throws Error(kBadData) that names `file` and the tensor.
BundleIndex decode_index(std::string_view bytes, const std::string& file);

}  // namespace lockstep::checkpoint
