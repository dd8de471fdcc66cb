#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// Arguments of a network's forward pass: the tensors of a batch.
struct ForwardArguments {
  std::vector<at::Tensor> tensors;
  std::vector<std::string> names = {};  ///< keywords, by tensor; empty: positional arguments
};

}  // namespace lockstep
