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

/// A trained network with its weights, in evaluation, on the CPU: what an engine is made of.
struct LoadedNetwork {
  std::string source;  ///< folder of an export, or prefix of a save
  int64_t step = 0;    ///< of the run that trained it
  IoNodes nodes;
  std::vector<std::string> class_names = {};  ///< by class number; empty: unknown
  /// TorchScript; no code of the model is needed. Null: `forward` computes.
  std::shared_ptr<torch::jit::Module> module;
  /// Of a network that has no form as TorchScript: its own code, inputs_BX -> outputs_BO.
  std::function<at::Tensor(const at::Tensor& inputs_BX)> forward;
};

}  // namespace lockstep::infer
