#pragma once

#include <memory>
#include <string>

#include "coord/data_map.h"
#include "infer/engine/engine.h"

namespace lockstep::infer {

/// A trained network that answers maps of named tensors, without the code that built it.
///
///   Predictor predictor(open_saved_model("runs/digits/saved_models/230", "0.1.0"), {}, at::kCPU);
///   const DataMap outputs = predictor.predict(feed);  // "logits"
///
/// One thread at a time, unless takes_many_threads().
class Predictor {
 public:
  Predictor(const LoadedNetwork& network, const EngineOptions& options, at::Device device);

  /// The network's outputs by their names, on the CPU. Samples of more than
  /// tensorrt.max_batch_size are answered in parts. Throws Error(kBadData) for inputs that do not
  /// fit its nodes, and where an output has another number of samples.
  coord::DataMap predict(const coord::DataMap& feed);

  const IoNodes& nodes() const { return nodes_; }
  /// What the engine does with the network.
  std::string engine() const { return engine_->description(); }
  /// Whether predict() may be called by several threads at once.
  bool takes_many_threads() const { return engine_->takes_many_threads(); }

 private:
  std::vector<at::Tensor> answer(const std::vector<at::Tensor>& inputs);
  void require_as_many(const std::vector<at::Tensor>& outputs, int64_t num_samples) const;

  const std::string source_;
  const IoNodes nodes_;
  const std::optional<int64_t> max_batch_size_;
  const at::Device device_;
  const std::unique_ptr<EngineBackend> engine_;
};

}  // namespace lockstep::infer
