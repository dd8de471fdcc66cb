#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/layer_hook.h"
#include "base/tensors/params.h"
#include "model/batch_norm_table.h"
#include "model/initial_values.h"
#include "model/network.h"
#include "model/products/kept_weight.h"

/// Layers as small values. A layer adds itself to its model's table and computes with ATen. Names:
/// <layer>.weight, <layer>.bias. Initial values are uniform in ±1/sqrt(fan_in) unless stated
/// otherwise, drawn from (seed, name). Symbols: B = samples, I = inputs, O = outputs, H, W = rows,
/// columns.
namespace lockstep::model {

/// Tensor that forward uses or writes and that has no gradient. Shares memory with the model.
struct Buffer {
  std::string name;  ///< dotted, unique among buffers and parameters
  at::Tensor tensor;
  /// True if each rank's forward passes may change it directly, as PyTorch's batch normalisation
  /// does. The training step then makes it equal on all ranks (train/step/moved_buffers.h).
  bool moved_by_forward = false;
};

/// Identity of the next forward pass of a training run. Random parts such as dropout are a pure
/// function of (seed, step, index of the sample in the global batch, layer).
struct ForwardPass {
  int64_t step = 0;
  int64_t first_sample = 0;  ///< index of the batch's first sample
};

/// State shared by the layers of one model. Layers keep its address, so it must not move.
struct LayerTable {
  LayerTable() = default;
  LayerTable(const LayerTable&) = delete;
  LayerTable& operator=(const LayerTable&) = delete;

  ParamTable params;
  std::vector<LayerInfo> layers;  ///< in the order of forward
  LayerHook* hook = nullptr;      ///< null: layers use the plain tensors
  BatchNormTable norms;
  std::vector<Buffer> buffers;

  /// Current pass. Reading it marks the model as dependent on host values that change each pass.
  const ForwardPass& pass() const {
    pass_was_read = true;
    return current_pass;
  }
  ForwardPass current_pass;
  mutable bool pass_was_read = false;
};

/// Parameters of a layer and their initial values.
struct LayerParamsOptions {
  bool has_bias = true;
  Initial weight = {};               ///< default: from the fan-in
  std::optional<Initial> bias = {};  ///< default: uniform, from the weight's fan-in
};

/// Weight and bias of one layer. The constructor adds them to the table.
class LayerParams {
 public:
  LayerParams(const std::string& name, at::IntArrayRef weight_shape,
              const LayerParamsOptions& options, int64_t seed, LayerTable* table);

  /// Tensors for the computation: the plain ones, or the hook's result as float32. Call input()
  /// before weight().
  at::Tensor input(const at::Tensor& plain) const {
    return table_->hook == nullptr ? plain : table_->hook->input(index_, plain.to(at::kFloat));
  }
  at::Tensor weight() const {
    return table_->hook == nullptr ? weight_ : table_->hook->weight(index_, weight_);
  }
  /// Bias; undefined if there is none.
  const at::Tensor& bias() const { return bias_O_; }
  const std::string& name() const { return table_->layers[static_cast<size_t>(index_)].name; }
  /// State of the weight's in-place gradient; null unless the layer uses writes_grad_in_place().
  const std::shared_ptr<GradInPlace>& grad_in_place() const { return grad_in_place_; }
  /// Declares in the table that the layer's backward writes the weight's gradient in place.
  void writes_grad_in_place();
  /// Kept elements of a weight [O, I] with a mask that keeps few; else null (follow_mask()).
  const KeptWeight* kept() const { return kept_->get(); }
  /// Declares in the table that the layer can compute with kept elements only.
  void may_follow_mask();
  /// Weight in the table, without the hook.
  const at::Tensor& plain_weight() const { return weight_; }

 private:
  LayerTable* table_;
  int64_t index_;  // in table_->layers
  at::Tensor weight_;
  at::Tensor bias_O_;
  std::shared_ptr<GradInPlace> grad_in_place_;
  std::shared_ptr<std::shared_ptr<const KeptWeight>> kept_;  // shared with the table's callback
};

class Linear {
 public:
  Linear(const std::string& name, int64_t num_inputs, int64_t num_outputs, int64_t seed,
         LayerTable* table)
      : Linear(name, num_inputs, num_outputs, LayerParamsOptions{}, seed, table) {}
  Linear(const std::string& name, int64_t num_inputs, int64_t num_outputs,
         const LayerParamsOptions& options, int64_t seed, LayerTable* table);
  /// Computes [B, ..., I] -> [B, ..., O].
  at::Tensor operator()(const at::Tensor& inputs) const;
  NetworkLayer description() const;

 private:
  LayerParams params_;  // weight [O, I]
};

struct Conv2dOptions {
  int64_t kernel = 3;  ///< rows and columns
  int64_t stride = 1;
  int64_t padding = 0;  ///< zeros on each side
  int64_t groups = 1;   ///< each group maps its share of the inputs to its share of the outputs
  LayerParamsOptions params = {};
};

/// Convolution [B, I, H, W] -> [B, O, H', W'], H' = (H + 2 padding - kernel) / stride + 1, rounded
/// down.
class Conv2d {
 public:
  Conv2d(const std::string& name, int64_t num_inputs, int64_t num_outputs,
         const Conv2dOptions& options, int64_t seed, LayerTable* table);
  at::Tensor operator()(const at::Tensor& inputs_BIHW) const;
  NetworkLayer description() const;

 private:
  LayerParams params_;  // weight [O, I / groups, kernel, kernel]
  int64_t kernel_, stride_, padding_, groups_;
};

/// 3×3 convolution with padding 1: [B, I, H, W] -> [B, O, ceil(H / stride), ceil(W / stride)].
class Conv3x3 : public Conv2d {
 public:
  Conv3x3(const std::string& name, int64_t num_inputs, int64_t num_outputs, int64_t stride,
          int64_t seed, LayerTable* table)
      : Conv2d(name, num_inputs, num_outputs, {.kernel = 3, .stride = stride, .padding = 1}, seed,
               table) {}
};

}  // namespace lockstep::model
