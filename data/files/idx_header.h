#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

/// Start of an IDX file of uint8 values. It has the bytes 0, 0, 8 (uint8) and the number of axes,
/// then their sizes as big-endian uint32.
struct IdxHeader {
  std::vector<int64_t> sizes;
  int64_t num_bytes = 0;  ///< position of the first value
};

inline constexpr int64_t kMaxIdxHeaderBytes = 4 + 4 * 8;

/// Parses a header. `bytes`: the start of the file, kMaxIdxHeaderBytes or all of it. Throws
/// Error(kBadData) with the name `file` unless the file has exactly the size that the header
/// implies.
IdxHeader parse_idx_header(std::string_view bytes, int64_t file_bytes, const std::string& file);

}  // namespace lockstep::data
