#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensors/number_type.h"

/// The header of a file in the safetensors format: 8 bytes, the length of the JSON that follows; a
/// member of it for each tensor, {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, the
/// offsets counted from the JSON's end; and "__metadata__", which is passed over.
///
/// Source: the format's description at https://github.com/huggingface/safetensors.
///
/// All of these throw std::runtime_error with the reason, and take memory for what is asked for
/// only: JSON of at most 32 MiB, nested 4 deep at most, with 200,000 tensors at most, names of 1000
/// bytes and shapes of 32 dimensions.
namespace lockstep {

inline constexpr int64_t kSafetensorsLengthBytes = 8;
inline constexpr std::string_view kSafetensorsMetadata = "__metadata__";

/// "F32" and so on; nothing for other types than NumberType has.
std::optional<NumberType> safetensors_type(std::string_view name);
std::string_view safetensors_type_name(NumberType type);

/// A tensor as the header says it.
struct SafetensorsEntry {
  std::string dtype;  ///< empty: it has none
  bool has_shape = false;
  std::vector<int64_t> shape, data_offsets;
};

/// Where its numbers lie.
struct SafetensorsPlace {
  NumberType type = NumberType::kF32;
  int64_t offset = 0, num_bytes = 0;  ///< in the file
};

/// Where the header ends and numbers begin, from the file's begin; `bytes`: the first 8.
int64_t safetensors_data_begin(std::string_view bytes, int64_t file_bytes);

/// `json`: what stands between the length and the numbers. A name that stands there twice is
/// refused.
std::map<std::string, SafetensorsEntry> read_safetensors_header(std::string_view json);

/// The place lies inside the file, and has as many bytes as shape and type say.
SafetensorsPlace place_of(const SafetensorsEntry& entry, int64_t data_begin, int64_t file_bytes);

}  // namespace lockstep
