#include "checkpoint/format/tensor_type.h"

#include <array>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep::checkpoint {
namespace {

/// Type of TensorFlow. Those that LibTorch lacks, or that are not supported here, are undefined.
struct TypeRow {
  int32_t number;
  std::string_view name;
  at::ScalarType type = at::ScalarType::Undefined;
  bool can_be_sliced = true;
};

// Numbers and names of DataType in TensorFlow's types.proto.
constexpr std::array kTypes = {
    TypeRow{1, "float32", at::kFloat},
    TypeRow{2, "float64", at::kDouble},
    TypeRow{3, "int32", at::kInt},
    TypeRow{4, "uint8", at::kByte},
    TypeRow{5, "int16", at::kShort},
    TypeRow{6, "int8", at::kChar},
    TypeRow{kStringType, "string"},
    TypeRow{8, "complex64", at::kComplexFloat},
    TypeRow{9, "int64", at::kLong},
    TypeRow{10, "bool", at::kBool},
    TypeRow{11, "qint8"},
    TypeRow{12, "quint8"},
    TypeRow{13, "qint32"},
    TypeRow{14, "bfloat16", at::kBFloat16},
    TypeRow{15, "qint16"},
    TypeRow{16, "quint16"},
    TypeRow{17, "uint16", at::kUInt16, false},
    TypeRow{18, "complex128", at::kComplexDouble},
    TypeRow{19, "float16", at::kHalf, false},
    TypeRow{20, "resource"},
    TypeRow{21, "variant"},
    TypeRow{22, "uint32", at::kUInt32, false},
    TypeRow{23, "uint64", at::kUInt64, false},
    TypeRow{24, "float8_e5m2"},
    TypeRow{25, "float8_e4m3fn"},
    TypeRow{26, "float8_e4m3fnuz"},
    TypeRow{27, "float8_e4m3b11fnuz"},
    TypeRow{28, "float8_e5m2fnuz"},
    TypeRow{29, "int4"},
    TypeRow{30, "uint4"},
    TypeRow{31, "int2"},
    TypeRow{32, "uint2"},
};

/// Returns the row of a number; null if TensorFlow has no such type.
const TypeRow* row_of(int32_t number) {
  for (const TypeRow& row : kTypes)
    if (row.number == number) return &row;
  return nullptr;
}

}  // namespace

std::optional<int32_t> type_number(at::ScalarType type) {
  for (const TypeRow& row : kTypes)
    if (row.type == type && type != at::ScalarType::Undefined) return row.number;
  return std::nullopt;
}

std::optional<at::ScalarType> scalar_type(int32_t number) {
  const TypeRow* const row = row_of(number);
  if (row == nullptr || row->type == at::ScalarType::Undefined) return std::nullopt;
  return row->type;
}

std::string type_name(int32_t number) {
  const TypeRow* const row = row_of(number);
  return row == nullptr ? fmt::format("type {}", number) : std::string(row->name);
}

std::string type_and_shape(int32_t number, at::IntArrayRef shape) {
  return fmt::format("{} [{}]", type_name(number), fmt::join(shape, ", "));
}

bool is_known_type(int32_t number) {
  return number == kStringType || scalar_type(number).has_value();
}

bool can_be_sliced(int32_t number) {
  return scalar_type(number).has_value() && row_of(number)->can_be_sliced;
}

}  // namespace lockstep::checkpoint
