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

/// Computes a network, in whichever way is the fastest here.
class EngineBackend {
 public:
  EngineBackend() = default;
  virtual ~EngineBackend() = default;
  EngineBackend(const EngineBackend&) = delete;
  EngineBackend& operator=(const EngineBackend&) = delete;

  /// `inputs` in the order of the network's nodes, on the engine's device; outputs there, in their
  /// order. No gradients are kept. Throws what LibTorch throws. One thread at a time, unless
  /// takes_many_threads().
  virtual std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) = 0;

  /// Whether run() may be called by several threads at once.
  virtual bool takes_many_threads() const { return false; }

  /// What it does with the network, for the log and the result.
  virtual std::string description() const = 0;
};

/// `optimized`: batch normalisation is folded into convolutions, weights become constants and are
/// laid out for the kernels, so that results may differ in their last digits; with use_tensorrt by
/// Torch-TensorRT. `plain`: the operators of the network as they were written, which give the bits
/// of the run's evaluation. What cannot be had is replaced by the next best, and description()
/// says why.
///
/// The network is moved to `device` and belongs to the engine from now on.
std::unique_ptr<EngineBackend> make_engine(const LoadedNetwork& network,
                                           const EngineOptions& options, at::Device device);

}  // namespace lockstep::infer
