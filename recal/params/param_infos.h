#pragma once

#include <vector>

#include "base/tensors/params.h"
#include "recal/params/param_selector.h"

namespace lockstep::recal {

/// Returns the properties of a model's parameters that a timeline needs, in the model's order.
std::vector<ParamInfo> param_infos(const ParamTable& params);

}  // namespace lockstep::recal
