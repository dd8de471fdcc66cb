#pragma once

#include <string>
#include <vector>

#include "base/tensors/params.h"

namespace lockstep::recal {

/// optimizer.weight_decay_exclude: the named parameters get no weight decay, so they join the group
/// `other`. An entry is the name of a parameter or of what stands above it, dotted or slashed, or a
/// `re:` pattern (recal/params/name_pattern.h). Before flat buffers are planned. Throws
/// Error(kConfig) for an entry that is no pattern, or that names nothing, with the nearest name.
void exclude_from_decay(const std::vector<std::string>& entries, ParamTable* params);

}  // namespace lockstep::recal
