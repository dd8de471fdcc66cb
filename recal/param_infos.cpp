#include "recal/param_infos.h"

namespace lockstep::recal {

std::vector<ParamInfo> param_infos(const ParamTable& params) {
  std::vector<ParamInfo> infos;
  infos.reserve(params.size());
  for (const Param& param : params)
    infos.push_back(
        {param.name, param.prunable, param.tensor.defined() ? param.tensor.numel() : 0});
  return infos;
}

}  // namespace lockstep::recal
