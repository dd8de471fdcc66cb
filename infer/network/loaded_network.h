#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "infer/network/io_nodes.h"

namespace torch::jit {
struct Module;
}

namespace lockstep::infer {

/// Trained network with its weights, in evaluation, on the CPU: the input for an engine.
struct LoadedNetwork {
  std::string source;  ///< folder of an export, or prefix of a checkpoint
  int64_t step = 0;    ///< step of the run that trained it
  IoNodes nodes;
  std::vector<std::string> class_names = {};  ///< by class number; empty: unknown
  /// TorchScript module, which needs no code of the model. Null: `forward` computes.
  std::shared_ptr<torch::jit::Module> module;
  /// Own code of a network without a TorchScript form: inputs_BX -> outputs_BO.
  std::function<at::Tensor(const at::Tensor& inputs_BX)> forward;
};

}  // namespace lockstep::infer
