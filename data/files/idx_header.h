#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

/// The begin of an IDX file of uint8 values: 0, 0, 8 (uint8), the number of axes; their sizes as
/// big-endian uint32.
struct IdxHeader {
  std::vector<int64_t> sizes;
  int64_t num_bytes = 0;  ///< where the values begin
};

inline constexpr int64_t kMaxIdxHeaderBytes = 4 + 4 * 8;

/// `bytes`: the first of the file, kMaxIdxHeaderBytes or all. Throws Error(kBadData) that names
/// `file` unless the file has just as many bytes as the header says.
IdxHeader parse_idx_header(std::string_view bytes, int64_t file_bytes, const std::string& file);

}  // namespace lockstep::data
