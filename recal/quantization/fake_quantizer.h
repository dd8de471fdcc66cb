#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/params.h"
#include "base/tensors/state_list.h"
#include "dist/communicator.h"
#include "recal/quantization/int8_rounding.h"

/// Fake quantization during training, and the ranges of layer inputs that it uses.
namespace lockstep::recal {

/// Smallest and largest value of each layer's input, as moving averages over steps, equal on all
/// ranks:
///
///   observe()  any number of times per step, in each micro-batch; stores local extremes
///   agree()    once after a counted step: one collective joins the ranks' extremes, and the
///              averages move by 1/100 of the difference (the first observation sets them)
///   drop()     instead of agree(), after a step that does not count or must not be learnt from
///
/// Symbol: L = layers. Not thread-safe: one thread at a time.
class InputRanges {
 public:
  /// Takes the dotted names of the layers.
  explicit InputRanges(std::vector<std::string> names);

  struct Range {
    float min = 0, max = 0;
    int64_t num_observations = 0;  ///< counted steps; 0: min and max are undefined
  };
  Range at(int64_t layer) const;

  /// Updates the local extremes with `input`, which has at least one element. Does not synchronize
  /// with the device.
  void observe(int64_t layer, const at::Tensor& input);

  /// Finds the extremes over all ranks. Collective.
  void agree(dist::Communicator& control);
  bool are_agreed() const { return bounds_2L_.defined(); }
  /// Updates the averages with the agreed extremes. A layer stays unchanged if no rank observed it,
  /// or if an observed value was not finite.
  void take();
  void drop();

  /// Checkpoint state `_lockstep/quantization/<layer>/{input_min, input_max, observations}`, live
  /// memory. Observations since the last agree() are not included: checkpoints are made between
  /// steps.
  StateList state() const;

 private:
  struct Extremes {
    at::Tensor min, max;  // 0-dimensional, on the input's device
  };

  std::vector<std::string> names_;
  at::Tensor min_L_, max_L_;         // float32, on the CPU
  at::Tensor num_observations_L_;    // int64, on the CPU
  std::vector<Extremes> pending_L_;  // of this step; undefined if not observed
  at::Tensor bounds_2L_;  // of all ranks: -min of all layers, then max; undefined: not agreed
};

/// Quantization of a layer when it was saved. The numbers are stored and must not change.
enum class QuantizationScheme : int64_t { kNone = 0, kPerTensor = 1, kPerOutput = 2 };

/// Fake quantization. In the forward pass, inputs and weights of the chosen layers are rounded to
/// int8 values (int8_rounding.h). Gradients pass straight through where a value is inside the
/// range. Training thus finds weights that tolerate the rounding.
///
///   set_layer_hook(&quantizer)          once, on the model
///   configure(...)                      before a step's forward pass, after every change
///   forward, backward, update           observes inputs if gradients are on
///   agree(control)                      before an update, optional
///   end_step(control, counted)          after each step
///
/// Weights: every forward pass derives the scales from the current weights, so equal weights give
/// equal scales. Inputs: scales follow from the moving averages of InputRanges. Step s uses those
/// agreed after step s-1. Inputs of a layer that was never observed are not rounded. Non-finite
/// values stay non-finite (int8_rounding.h), so the step is skipped as it would be without
/// quantization. Evaluation (gradients off) also quantizes but observes nothing.
///
/// Masks are not affected: a weight of zero stays exactly zero. All ranks must make the same calls.
/// Not thread-safe: one thread at a time.
class FakeQuantizer final : public LayerHook {
 public:
  /// Takes all layers of the model; none is quantized yet.
  explicit FakeQuantizer(const std::vector<LayerInfo>& layers);

  /// Sets the quantized layers (indices in the model's list) and the weight scales (one per output
  /// or one per tensor). observers_on: inputs update the averages. Cheap if nothing changes.
  void configure(const std::vector<int64_t>& layers_on, bool per_output, bool observers_on);

  /// Freezes the ranges of inputs until the next configure().
  void stop_observing() { observers_on_ = false; }

  at::Tensor input(int64_t layer, const at::Tensor& input) override;
  at::Tensor weight(int64_t layer, const at::Tensor& weight) override;

  /// Exchanges the step's observations. Collective if inputs are observed: one reduction of two
  /// numbers per layer.
  void agree(dist::Communicator& control);
  /// Ends a step: its observations count, or are dropped if it was skipped. Calls agree() if a step
  /// counts and the caller has not.
  void end_step(dist::Communicator& control, bool step_counted);

  /// Checkpoint state `_lockstep/quantization/<layer with slashes>/{input_min, input_max,
  /// observations, scheme}`, live memory. A checkpoint without it restores as never quantized.
  /// `scheme` is for tools that read checkpoints; configure() overwrites it.
  StateList state() const;

  int64_t num_layers() const { return static_cast<int64_t>(layers_.size()); }
  /// True if any layer is currently quantized.
  bool active() const { return num_on_ > 0; }
  int64_t num_quantized() const { return num_on_; }  ///< layers

  /// State of one layer, for summaries.
  struct LayerView {
    std::string name;
    QuantizationScheme scheme = QuantizationScheme::kNone;
    InputRanges::Range input_range;
    InputScale input_scale;    ///< undefined before the first observation
    at::Tensor weight_scales;  ///< of the last forward pass, [O] or [1]; undefined: none yet
  };
  LayerView view(int64_t layer) const;

 private:
  QuantizationScheme scheme(int64_t layer) const;

  std::vector<LayerInfo> layers_;
  InputRanges ranges_;
  at::Tensor schemes_L_;  // int64, on the CPU
  std::vector<at::Tensor> weight_scales_L_;
  bool observers_on_ = false;
  int64_t num_on_ = 0;
};

}  // namespace lockstep::recal
