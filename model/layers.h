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

/// Layers as small values: they enter themselves in their model's table and compute with ATen's own
/// operations. Names: <layer>.weight, <layer>.bias. Initial values: uniform in ±1/sqrt(fan_in)
/// unless said otherwise, drawn from (seed, name). Symbols: B = samples, I = inputs, O = outputs,
/// H, W = rows, columns.
namespace lockstep::model {

/// A tensor that forward uses or writes and no gradient changes. Shares memory with the model.
struct Buffer {
  std::string name;  ///< dotted, unique among buffers and parameters
  at::Tensor tensor;
  /// Each rank's forward passes may change it as they go, as PyTorch's batch normalisation does:
  /// the training step makes it equal again where they did (train/step/moved_buffers.h).
  bool moved_by_forward = false;
};

/// Which forward pass of a training run follows: what is random in it, such as dropout, is a pure
/// function of (seed, step, place of the sample in the global batch, layer).
struct ForwardPass {
  int64_t step = 0;
  int64_t first_sample = 0;  ///< place of the batch's first sample
};

/// What the layers of one model share. The layers keep its address, so it stays where it is.
struct LayerTable {
  LayerTable() = default;
  LayerTable(const LayerTable&) = delete;
  LayerTable& operator=(const LayerTable&) = delete;

  ParamTable params;
  std::vector<LayerInfo> layers;  ///< in the order in which forward uses them
  LayerHook* hook = nullptr;      ///< null: layers compute with the plain tensors
  BatchNormTable norms;
  std::vector<Buffer> buffers;

  /// Which pass this is; who asks computes by numbers of the host, which differ from pass to pass.
  const ForwardPass& pass() const {
    pass_was_read = true;
    return current_pass;
  }
  ForwardPass current_pass;
  mutable bool pass_was_read = false;
};

/// What parameters a layer has and how they begin.
struct LayerParamsOptions {
  bool has_bias = true;
  Initial weight = {};               ///< by default by fan-in
  std::optional<Initial> bias = {};  ///< by default uniform, by the fan-in of the weight
};

/// Weight and bias of one layer, entered in the table when it is made.
class LayerParams {
 public:
  LayerParams(const std::string& name, at::IntArrayRef weight_shape,
              const LayerParamsOptions& options, int64_t seed, LayerTable* table);

  /// What the layer computes with: the tensor itself, or what the table's hook makes of it, as
  /// float32. Ask for the input first.
  at::Tensor input(const at::Tensor& plain) const {
    return table_->hook == nullptr ? plain : table_->hook->input(index_, plain.to(at::kFloat));
  }
  at::Tensor weight() const {
    return table_->hook == nullptr ? weight_ : table_->hook->weight(index_, weight_);
  }
  /// Undefined where there is none.
  const at::Tensor& bias() const { return bias_O_; }
  const std::string& name() const { return table_->layers[static_cast<size_t>(index_)].name; }
  /// Of the weight; null unless the layer writes it (writes_grad_in_place()).
  const std::shared_ptr<GradInPlace>& grad_in_place() const { return grad_in_place_; }
  /// The layer's backward writes the weight's gradient in place: it says so in the table.
  void writes_grad_in_place();
  /// Of a weight [O, I] of which a mask keeps few elements; else null (follow_mask()).
  const KeptWeight* kept() const { return kept_->get(); }
  /// The layer can compute with kept elements alone: it says so in the table.
  void may_follow_mask();
  /// The weight of the table, whatever the hook makes of it.
  const at::Tensor& plain_weight() const { return weight_; }

 private:
  LayerTable* table_;
  int64_t index_;  // in table_->layers
  at::Tensor weight_;
  at::Tensor bias_O_;
  std::shared_ptr<GradInPlace> grad_in_place_;
  std::shared_ptr<std::shared_ptr<const KeptWeight>> kept_;  // shared with the table's function
};

class Linear {
 public:
  Linear(const std::string& name, int64_t num_inputs, int64_t num_outputs, int64_t seed,
         LayerTable* table)
      : Linear(name, num_inputs, num_outputs, LayerParamsOptions{}, seed, table) {}
  Linear(const std::string& name, int64_t num_inputs, int64_t num_outputs,
         const LayerParamsOptions& options, int64_t seed, LayerTable* table);
  /// [B, ..., I] -> [B, ..., O]
  at::Tensor operator()(const at::Tensor& inputs) const;
  NetworkLayer description() const;

 private:
  LayerParams params_;  // weight [O, I]
};

struct Conv2dOptions {
  int64_t kernel = 3;  ///< rows and columns
  int64_t stride = 1;
  int64_t padding = 0;  ///< zeros on each side
  int64_t groups = 1;   ///< each takes its share of the inputs and gives its share of the outputs
  LayerParamsOptions params = {};
};

/// [B, I, H, W] -> [B, O, H', W'], H' = (H + 2 padding - kernel) / stride + 1, rounded down.
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
