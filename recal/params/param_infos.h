#pragma once

#include <vector>

#include "base/tensors/params.h"
#include "recal/params/param_selector.h"

namespace lockstep::recal {

/// What a timeline needs to know of a model's parameters, in their order.
std::vector<ParamInfo> param_infos(const ParamTable& params);

}  // namespace lockstep::recal
