#include "checkpoint/bundle/number_types.h"

#include <algorithm>
#include <array>
#include <utility>

namespace lockstep::checkpoint {
namespace {

constexpr std::array<std::pair<NumberType, at::ScalarType>, 12> kNumberTypes{
    {{NumberType::kBool, at::kBool},
     {NumberType::kU8, at::kByte},
     {NumberType::kI8, at::kChar},
     {NumberType::kU16, at::kUInt16},
     {NumberType::kI16, at::kShort},
     {NumberType::kU32, at::kUInt32},
     {NumberType::kI32, at::kInt},
     {NumberType::kI64, at::kLong},
     {NumberType::kF16, at::kHalf},
     {NumberType::kBF16, at::kBFloat16},
     {NumberType::kF32, at::kFloat},
     {NumberType::kF64, at::kDouble}}};

}  // namespace

at::ScalarType scalar_type_of(NumberType type) {
  return std::find_if(kNumberTypes.begin(), kNumberTypes.end(),
                      [&](const auto& pair) { return pair.first == type; })
      ->second;
}

std::optional<NumberType> number_type_of(at::ScalarType type) {
  for (const auto& [number, scalar] : kNumberTypes)
    if (scalar == type) return number;
  return std::nullopt;
}

}  // namespace lockstep::checkpoint
