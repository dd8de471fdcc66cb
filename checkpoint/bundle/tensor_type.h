#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

/// Element types of a save, by the numbers that TensorFlow gives them. The numbers reach the disk
/// and never change.
namespace lockstep::checkpoint {

inline constexpr int32_t kStringType = 7;

/// The number of a LibTorch type; nothing where TensorFlow has no such type.
std::optional<int32_t> type_number(at::ScalarType type);
/// The LibTorch type of a number; nothing for strings and unknown numbers.
std::optional<at::ScalarType> scalar_type(int32_t number);
/// float32, string, variant, ...; "type 99" for a number that nobody knows.
std::string type_name(int32_t number);
/// "float32 [2, 3]"
std::string type_and_shape(int32_t number, at::IntArrayRef shape);
/// True for what scalar_type() knows and for strings: the values of other types are not read.
bool is_known_type(int32_t number);
/// True if TensorFlow reads tensors of this type that are saved in slices. It refuses such strings,
/// float16 and unsigned numbers of 16 bits and more.
bool can_be_sliced(int32_t number);

}  // namespace lockstep::checkpoint
