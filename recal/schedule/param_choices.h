#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/tensors/params.h"

namespace lockstep::recal {

/// Chooses the parameters with weight decay, before the flat buffers are planned. All others join
/// the parameter group `other`.
///
/// groups: optimizer.weight_decay_groups. `weights` are the parameters that their layer marks as
/// decayed. `normalisation` are gains and shifts of normalisation layers: `gamma`, `beta`, a
/// one-dimensional `weight`, and a `bias` next to such a weight. `biases` are all other parameters
/// named `bias`. exclusions: optimizer.weight_decay_exclude, which override `groups`. An entry is
/// the name of a parameter or of a module that contains it, dotted or slashed. Or it is a `re:`
/// pattern (recal/schedule/param_selector.h). Throws Error(kConfig) for an invalid pattern, or for
/// an entry that matches nothing; the message then has the nearest name.
void choose_decayed(const std::vector<std::string>& groups,
                    const std::vector<std::string>& exclusions, ParamTable* params);

/// Chooses the parameters that Muon updates as matrices (Param::is_matrix), before the flat buffers
/// are planned. entries: optimizer.muon_params, in the same form; empty: weights of linear and
/// convolution layers except the last of the table, which is taken for the head. Throws
/// Error(kConfig) like choose_decayed(), for an entry that names no parameter of 2 or more
/// dimensions, and if there is none at all.
void choose_matrices(const std::vector<std::string>& entries, ParamTable* params);

/// Sets Param::rate_multiplier, before the flat buffers are planned. entries:
/// optimizer.learning_rate_multipliers, in any order, with names in the same form. The longest name
/// counts, else the only pattern. Throws Error(kConfig) like choose_decayed(), and if a parameter
/// has patterns with different multipliers and no name.
void choose_multipliers(const std::vector<std::pair<std::string, double>>& entries,
                        ParamTable* params);

}  // namespace lockstep::recal
