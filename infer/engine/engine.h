#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "infer/engine/tensorrt_config.h"
#include "infer/network/loaded_network.h"

namespace lockstep::infer {

struct EngineOptions {
  std::string engine = "optimized";  ///< optimized | plain
  TensorrtConfig tensorrt;
};

/// Way of computing a network.
class EngineBackend {
 public:
  EngineBackend() = default;
  virtual ~EngineBackend() = default;
  EngineBackend(const EngineBackend&) = delete;
  EngineBackend& operator=(const EngineBackend&) = delete;

  /// Computes the outputs. `inputs` are in the order of the network's nodes, on the engine's
  /// device; outputs likewise. Keeps no gradients. Throws LibTorch's exceptions. Not thread-safe,
  /// unless takes_many_threads() is true.
  virtual std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) = 0;

  /// True if several threads may call run() at once.
  virtual bool takes_many_threads() const { return false; }

  /// Description for the log and the result.
  virtual std::string description() const = 0;
};

/// Creates an engine. `optimized` folds batch normalisation into convolutions, makes weights
/// constant and lays them out for the kernels. Results may differ in the last digits. With
/// use_tensorrt, Torch-TensorRT compiles the network. `plain` runs the operators as written, with
/// the bits of the run's evaluation. If a way is not available, the next best is used, and
/// description() gives the reason.
///
/// The network is moved to `device`. The engine owns it from then on.
std::unique_ptr<EngineBackend> make_engine(const LoadedNetwork& network,
                                           const EngineOptions& options, at::Device device);

}  // namespace lockstep::infer
