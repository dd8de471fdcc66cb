#pragma once

#include <cstdint>

namespace lockstep {

/// Number types in files, little-endian.
enum class NumberType { kU8, kI8, kU16, kI16, kU32, kI32, kI64, kF16, kBF16, kF32, kF64, kBool };

/// Returns the bytes of one number.
constexpr int64_t size_of(NumberType type) {
  switch (type) {
    case NumberType::kU8:
    case NumberType::kI8:
    case NumberType::kBool:
      return 1;
    case NumberType::kU16:
    case NumberType::kI16:
    case NumberType::kF16:
    case NumberType::kBF16:
      return 2;
    case NumberType::kU32:
    case NumberType::kI32:
    case NumberType::kF32:
      return 4;
    case NumberType::kI64:
    case NumberType::kF64:
      return 8;
  }
  return 0;
}

constexpr bool is_float(NumberType type) {
  return type == NumberType::kF16 || type == NumberType::kBF16 || type == NumberType::kF32 ||
         type == NumberType::kF64;
}

}  // namespace lockstep
