#pragma once

#include <memory>
#include <string>

#include "coord/data_map.h"
#include "infer/engine.h"

namespace lockstep::infer {

/// Trained network that maps named tensors to named tensors, without the code that built it.
///
///   Predictor predictor(open_saved_model("runs/digits/saved_models/230", "0.1.0"), {}, at::kCPU);
///   const DataMap outputs = predictor.predict(feed);  // "logits"
///
/// Not thread-safe, unless takes_many_threads() is true.
class Predictor {
 public:
  Predictor(const LoadedNetwork& network, const EngineOptions& options, at::Device device);

  /// Returns the network's outputs by name, on the CPU. More samples than tensorrt.max_batch_size
  /// are computed in parts. Throws Error(kBadData) if inputs do not fit the network's nodes, or if
  /// an output has another number of samples.
  coord::DataMap predict(const coord::DataMap& feed);

  const IoNodes& nodes() const { return nodes_; }
  /// Describes what the engine does with the network.
  std::string engine() const { return engine_->description(); }
  /// Table of the engine's decisions for the last inputs; empty if it makes none.
  std::string explanation() const { return engine_->explanation(); }
  /// True if several threads may call predict() at once.
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
