#pragma once

#include <string>
#include <vector>

#include "base/tensors/params.h"

namespace lockstep::recal {

/// Decides which parameters get weight decay, before flat buffers are planned. The others join the
/// parameter group `other`.
///
/// `groups`: optimizer.weight_decay_groups. `weights` are the parameters that their layer marks as
/// decayed. `normalisation` are the gains and shifts of normalisation layers: `gamma`, `beta`, a
/// `weight` of one dimension and the `bias` beside it. `biases` are all other parameters named
/// `bias`. `exclusions`, optimizer.weight_decay_exclude, win over `groups`. An entry is the name of
/// a parameter or of what stands above it, dotted or slashed, or a `re:` pattern
/// (recal/params/name_pattern.h). Throws Error(kConfig) for an entry that is no pattern, or that
/// names nothing, with the nearest name.
void choose_decayed(const std::vector<std::string>& groups,
                    const std::vector<std::string>& exclusions, ParamTable* params);

}  // namespace lockstep::recal
