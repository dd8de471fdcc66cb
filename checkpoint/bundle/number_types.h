#pragma once

#include <optional>

#include <c10/core/ScalarType.h>

#include "base/tensors/number_type.h"

namespace lockstep::checkpoint {

/// LibTorch's type for a number type of files, and the reverse; nullopt if files have no such type.
at::ScalarType scalar_type_of(NumberType type);
std::optional<NumberType> number_type_of(at::ScalarType type);

}  // namespace lockstep::checkpoint
