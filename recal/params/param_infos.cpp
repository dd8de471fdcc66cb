#include "recal/params/param_infos.h"

namespace lockstep::recal {

std::vector<ParamInfo> param_infos(const ParamTable& params) {
  std::vector<ParamInfo> infos;
  infos.reserve(params.size());
  for (const Param& param : params) {
    ParamInfo& info = infos.emplace_back(ParamInfo{param.name, param.prunable});
    // Without a tensor the size stays unknown.
    if (!param.tensor.defined()) continue;
    info.num_weights = param.tensor.numel();
    info.sizes = param.tensor.sizes().vec();
  }
  return infos;
}

}  // namespace lockstep::recal
