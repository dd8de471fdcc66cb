#pragma once

#include <vector>

#include "coord/data_map.h"

namespace lockstep::infer {

/// Maps of the same keys as one: tensors joined on dimension 0, texts one behind the other, maps
/// within them in the same way. At least one map; one alone is given as it is.
///
/// Throws Error(kBadData) naming the key and both sides: a key that only some have, values of
/// different kinds, types or shapes behind dimension 0, a tensor without a dimension.
coord::DataMap joined(const std::vector<coord::DataMap>& parts);

}  // namespace lockstep::infer
