#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensors/number_type.h"

namespace lockstep::data {

/// An array in a file, row-major.
struct ArrayHeader {
  NumberType type = NumberType::kF32;
  std::vector<int64_t> shape;
  int64_t offset = 0;     ///< in the file, of its first number
  int64_t num_bytes = 0;  ///< of all its numbers
};

/// The header of a .npy file, versions 1 to 3. `bytes`: the file's first, kMaxNpyHeaderBytes or
/// all. Throws Error(kBadData) that names `file`: for Python objects, big-endian numbers, Fortran's
/// order, a header that is cut, and a file shorter than its array.
ArrayHeader parse_npy_header(std::string_view bytes, int64_t file_bytes, const std::string& file);
inline constexpr int64_t kMaxNpyHeaderBytes = int64_t{1} << 16;

/// A tensor of a safetensors file. `bytes`: the file's first, the length and the whole header.
/// Throws Error(kBadData) that names `file`; the names nearest to `name` if there is none.
/// base/tensors/safetensors_header.h has the bounds.
ArrayHeader parse_safetensors_header(std::string_view bytes, int64_t file_bytes,
                                     const std::string& name, const std::string& file);
/// Bytes from the file's begin to the end of its header; `bytes`: the first 8.
int64_t safetensors_header_end(std::string_view bytes, int64_t file_bytes, const std::string& file);

}  // namespace lockstep::data
