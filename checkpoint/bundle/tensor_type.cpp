#include "checkpoint/bundle/tensor_type.h"

#include <array>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep::checkpoint {
namespace {

struct TypeRow {
  int32_t number;
  at::ScalarType type;
  std::string_view name;
  bool can_be_sliced = true;
};

constexpr std::array kTypes = {
    TypeRow{1, at::kFloat, "float32"},
    TypeRow{2, at::kDouble, "float64"},
    TypeRow{3, at::kInt, "int32"},
    TypeRow{4, at::kByte, "uint8"},
    TypeRow{5, at::kShort, "int16"},
    TypeRow{6, at::kChar, "int8"},
    TypeRow{8, at::kComplexFloat, "complex64"},
    TypeRow{9, at::kLong, "int64"},
    TypeRow{10, at::kBool, "bool"},
    TypeRow{14, at::kBFloat16, "bfloat16"},
    TypeRow{17, at::kUInt16, "uint16", false},
    TypeRow{18, at::kComplexDouble, "complex128"},
    TypeRow{19, at::kHalf, "float16", false},
    TypeRow{22, at::kUInt32, "uint32", false},
    TypeRow{23, at::kUInt64, "uint64", false},
};

}  // namespace

std::optional<int32_t> type_number(at::ScalarType type) {
  for (const TypeRow& row : kTypes)
    if (row.type == type) return row.number;
  return std::nullopt;
}

std::optional<at::ScalarType> scalar_type(int32_t number) {
  for (const TypeRow& row : kTypes)
    if (row.number == number) return row.type;
  return std::nullopt;
}

std::string type_name(int32_t number) {
  if (number == kStringType) return "string";
  for (const TypeRow& row : kTypes)
    if (row.number == number) return std::string(row.name);
  return fmt::format("type {}", number);
}

std::string type_and_shape(int32_t number, at::IntArrayRef shape) {
  return fmt::format("{} [{}]", type_name(number), fmt::join(shape, ", "));
}

bool is_known_type(int32_t number) {
  return number == kStringType || scalar_type(number).has_value();
}

bool can_be_sliced(int32_t number) {
  for (const TypeRow& row : kTypes)
    if (row.number == number) return row.can_be_sliced;
  return false;
}

}  // namespace lockstep::checkpoint
