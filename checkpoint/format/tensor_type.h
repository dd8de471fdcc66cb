#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

/// Element types of a checkpoint, by TensorFlow's numbers. The numbers are written to disk and
/// never change.
namespace lockstep::checkpoint {

inline constexpr int32_t kStringType = 7;

/// Returns the number of a LibTorch type; nullopt if TensorFlow has no such type.
std::optional<int32_t> type_number(at::ScalarType type);
/// Returns the LibTorch type of a number; nullopt for strings and unknown numbers.
std::optional<at::ScalarType> scalar_type(int32_t number);
/// Returns "float32", "string", "variant", ...; "type 99" for an unknown number.
std::string type_name(int32_t number);
/// Returns, for instance, "float32 [2, 3]".
std::string type_and_shape(int32_t number, at::IntArrayRef shape);
/// True for strings and the types of scalar_type(). Values of other types are not read.
bool is_known_type(int32_t number);
/// True if TensorFlow can read slices of this type. It cannot for strings, float16, and unsigned
/// numbers of 16 bits or more.
bool can_be_sliced(int32_t number);

}  // namespace lockstep::checkpoint
