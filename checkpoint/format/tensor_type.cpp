#include "checkpoint/format/tensor_type.h"

#include <array>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep::checkpoint {
namespace {

/// Row of a type that LibTorch and TensorFlow share.
struct TypeRow {
  int32_t number;
  at::ScalarType type;
  std::string_view name;
  bool can_be_sliced = true;
};

// Numbers and names of DataType in TensorFlow's types.proto.
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

struct OtherType {
  int32_t number;
  std::string_view name;
};

/// Types of TensorFlow without a counterpart in LibTorch or without support here.
constexpr std::array kOtherTypes = {
    OtherType{11, "qint8"},
    OtherType{12, "quint8"},
    OtherType{13, "qint32"},
    OtherType{15, "qint16"},
    OtherType{16, "quint16"},
    OtherType{20, "resource"},
    OtherType{21, "variant"},
    OtherType{24, "float8_e5m2"},
    OtherType{25, "float8_e4m3fn"},
    OtherType{26, "float8_e4m3fnuz"},
    OtherType{27, "float8_e4m3b11fnuz"},
    OtherType{28, "float8_e5m2fnuz"},
    OtherType{29, "int4"},
    OtherType{30, "uint4"},
    OtherType{31, "int2"},
    OtherType{32, "uint2"},
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
  for (const OtherType& row : kOtherTypes)
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
