#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

/// Number types in files, and the header of a file in the safetensors format. The header has 8
/// bytes with the length of the JSON that follows. The JSON has a member per tensor, {"dtype":
/// "F32", "shape": [2, 3], "data_offsets": [0, 24]}, with offsets from the end of the JSON.
/// "__metadata__" is skipped.
///
/// Source: https://github.com/huggingface/safetensors, section "Format".
///
/// Functions on headers throw std::runtime_error with the reason, and allocate only what is needed.
/// Limits: JSON of 32 MiB, nested 4 deep, 200,000 tensors, names of 1000 bytes, shapes of 32
/// dimensions.
namespace lockstep {

/// Number types in files, little-endian.
enum class NumberType { kU8, kI8, kU16, kI16, kU32, kI32, kI64, kF16, kBF16, kF32, kF64, kBool };

/// Returns the bytes of one number.
constexpr int64_t size_of(NumberType type) {
  constexpr std::array<int64_t, 12> kBytes = {1, 1, 2, 2, 4, 4, 8, 2, 2, 4, 8, 1};
  return kBytes[static_cast<size_t>(type)];
}

constexpr bool is_float(NumberType type) {
  return type == NumberType::kF16 || type == NumberType::kBF16 || type == NumberType::kF32 ||
         type == NumberType::kF64;
}

inline constexpr int64_t kSafetensorsLengthBytes = 8;
inline constexpr std::string_view kSafetensorsMetadata = "__metadata__";

/// Tensor as the header describes it.
struct SafetensorsEntry {
  std::string dtype;  ///< empty: missing
  bool has_shape = false;
  std::vector<int64_t> shape, data_offsets;
};

/// Position of its numbers.
struct SafetensorsPlace {
  NumberType type = NumberType::kF32;
  int64_t offset = 0, num_bytes = 0;  ///< in the file
};

/// Returns the end of the header, where the numbers begin, from the start of the file. `bytes`: the
/// first 8.
int64_t safetensors_data_begin(std::string_view bytes, int64_t file_bytes);

/// Parses `json`, the text between the length and the numbers. A repeated name is refused.
std::map<std::string, SafetensorsEntry> read_safetensors_header(std::string_view json);

/// Returns the position after checking that it is inside the file and its size matches shape and
/// type.
SafetensorsPlace place_of(const SafetensorsEntry& entry, int64_t data_begin, int64_t file_bytes);

}  // namespace lockstep
