#pragma once

#include <optional>

#include <c10/core/ScalarType.h>

#include "base/tensors/number_type.h"

namespace lockstep::checkpoint {

/// LibTorch's name of a type of numbers in files, and back; nothing where files have none.
at::ScalarType scalar_type_of(NumberType type);
std::optional<NumberType> number_type_of(at::ScalarType type);

}  // namespace lockstep::checkpoint
