#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

/// What an index says (docs/checkpoint_format.md, Index).
namespace lockstep::checkpoint {

/// Where one tensor lies. Values come from a file and have been checked by decode_index().
struct BundleEntry {
  int32_t dtype = 0;           ///< number as in tensor_type.h
  std::vector<int64_t> shape;  ///< no dimension negative
  int32_t shard = 0;
  int64_t offset = 0;
  int64_t num_bytes = 0;
  uint32_t masked_crc = 0;
  bool sliced =
      false;  ///< its bytes lie in slices of their own; this save format does not read them yet

  /// Product of the shape: 1 for a scalar.
  int64_t num_elements() const;
  int64_t end() const { return offset + num_bytes; }
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
