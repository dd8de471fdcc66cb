#pragma once

#include <vector>

#include "coord/data_map.h"

namespace lockstep::infer {

/// Joins maps with the same keys: tensors on dimension 0, lists of texts one after another, nested
/// maps in the same way. Requires at least one map; a single one is returned unchanged.
///
/// Throws Error(kBadData), naming the key and both sides, if only some maps have a key. Also throws
/// if kinds, types or shapes after dimension 0 differ, or for a tensor without a dimension.
coord::DataMap joined(const std::vector<coord::DataMap>& parts);

}  // namespace lockstep::infer
