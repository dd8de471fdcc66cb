#pragma once

#include <cstdint>
#include <vector>

#include "base/tensors/layer_hook.h"
#include "base/tensors/state_list.h"
#include "dist/communicator.h"
#include "recal/quantization/input_ranges.h"
#include "recal/quantization/int8_scales.h"

namespace lockstep::recal {

/// How a layer was quantized when it was saved. The numbers reach the disk and never change.
enum class QuantizationScheme : int64_t { kNone = 0, kPerTensor = 1, kPerOutput = 2 };

/// Fake quantization: in the forward pass, inputs and weights of the chosen layers are rounded to
/// what int8 can hold (int8_scales.h); gradients pass straight through where a value lies inside
/// the range. So training finds weights that bear the rounding.
///
///   set_layer_hook(&quantizer)          once, on the model
///   configure(...)                      before a step's forward pass, whenever something changes
///   forward, backward, update           inputs are observed where gradients are on
///   end_step(control, counted)          after each step
///
/// Weights: scales follow from the current weights in every forward pass; equal weights, equal
/// scales. Inputs: scales follow from the moving averages of InputRanges, so those of step s were
/// agreed after step s-1, and until a layer was observed its inputs pass as they are. What is
/// not finite stays so (int8_rounding.h): the step is then skipped, as it would be without
/// quantization. Evaluation (gradients off) quantizes too, and observes nothing.
///
/// Masks are not touched: a weight of zero stays exactly zero. Same calls on all ranks; one thread
/// at a time.
class FakeQuantizer final : public LayerHook {
 public:
  /// All layers of the model; none is quantized yet.
  explicit FakeQuantizer(const std::vector<LayerInfo>& layers);

  /// From now on: which layers are quantized (indices in the model's list), whether a weight has a
  /// scale per output or one in all, whether inputs move the averages. Cheap where nothing changes.
  void configure(const std::vector<int64_t>& layers_on, bool per_output, bool observers_on);

  /// Ranges of inputs stay as they are until configure() is called again.
  void stop_observing() { observers_on_ = false; }

  at::Tensor input(int64_t layer, const at::Tensor& input) override;
  at::Tensor weight(int64_t layer, const at::Tensor& weight) override;

  /// Collective (one reduction of two numbers a layer) if `step_counted` and inputs were to be
  /// observed; else local. A step that was skipped does not count: what was observed is dropped.
  void end_step(dist::Communicator& control, bool step_counted);

  /// `_lockstep/quantization/<layer with slashes>/{input_min, input_max, observations, scheme}`,
  /// live memory. A save that lacks them restores as never quantized; `scheme` is for tools that
  /// read a save, configure() writes it anew.
  StateList state() const;

  int64_t num_layers() const { return static_cast<int64_t>(layers_.size()); }
  /// True if any layer is quantized now.
  bool active() const { return num_on_ > 0; }
  int64_t num_quantized() const { return num_on_; }  ///< layers

  /// One layer, for summaries.
  struct LayerView {
    std::string name;
    QuantizationScheme scheme = QuantizationScheme::kNone;
    InputRanges::Range input_range;
    InputScale input_scale;    ///< meaningless before the first observation
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
