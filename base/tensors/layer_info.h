#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

/// Layer of a model that multiplies by a weight: linear or convolution.
struct LayerInfo {
  std::string name;          ///< dotted: blocks.0.conv
  int64_t weight_param = 0;  ///< index in the ParamTable
  bool has_batch_norm = false;
};

}  // namespace lockstep
