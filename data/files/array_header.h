#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensors/number_type.h"

namespace lockstep::data {

/// Array in a file, row-major.
struct ArrayHeader {
  NumberType type = NumberType::kF32;
  std::vector<int64_t> shape;
  int64_t offset = 0;     ///< position in the file of its first number
  int64_t num_bytes = 0;  ///< size of all its numbers
};

/// Parses the header of a .npy file, versions 1 to 3. `bytes`: the start of the file,
/// kMaxNpyHeaderBytes or all of it. Throws Error(kBadData) with the name `file`. Reasons are Python
/// objects, big-endian numbers, Fortran order, a cut header, and a file shorter than its array.
ArrayHeader parse_npy_header(std::string_view bytes, int64_t file_bytes, const std::string& file);
inline constexpr int64_t kMaxNpyHeaderBytes = int64_t{1} << 16;

/// Parses the header of a safetensors file and returns one tensor. `bytes`: the start of the file
/// with the length and the entire header. Throws Error(kBadData) with the name `file`. If there is
/// no tensor `name`, the message has the nearest names. base/tensors/safetensors_header.h defines
/// the limits.
ArrayHeader parse_safetensors_header(std::string_view bytes, int64_t file_bytes,
                                     const std::string& name, const std::string& file);
/// Returns the size of the file up to the end of its header; `bytes`: the first 8.
int64_t safetensors_header_end(std::string_view bytes, int64_t file_bytes, const std::string& file);

}  // namespace lockstep::data
