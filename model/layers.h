#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/random.h"
#include "base/tensors/params.h"
#include "model/batch_norm.h"
#include "model/linear/linear_function.h"
#include "model/network.h"

/// Layers as small values, and initial values of their parameters. A layer adds itself to its
/// model's table and computes with ATen. Names: <layer>.weight, <layer>.bias. Initial values are
/// uniform in ±1/sqrt(fan_in) unless stated otherwise, drawn from (seed, name). Symbols: B =
/// samples, I = inputs, O = outputs, H, W = rows, columns.
namespace lockstep::model {

/// Distribution of a parameter's initial values. They are a pure function of (seed, name). Sums and
/// products that are exact on every machine compute them.
struct Initial {
  enum class Kind {
    kConstant,  ///< all equal `scale`
    kUniform,   ///< in ±scale
    kNormal,    ///< of mean 0 and standard deviation `scale`
    kFanIn,     ///< uniform in ±1/sqrt(inputs), as in torch::nn
    kFanOut,    ///< normal of variance 2/outputs: He et al., arXiv 1502.01852
    kXavier,    ///< uniform of variance 2/(inputs + outputs): Glorot, Bengio, 2010
  };
  Kind kind = Kind::kFanIn;
  double scale = 0;
};

inline Initial constant(double value) { return {Initial::Kind::kConstant, value}; }
inline Initial uniform(double bound) { return {Initial::Kind::kUniform, bound}; }
inline Initial normal(double deviation) { return {Initial::Kind::kNormal, deviation}; }

/// Tensor that forward uses or writes and that has no gradient. Shares memory with the model.
struct Buffer {
  std::string name;  ///< dotted, unique among buffers and parameters
  at::Tensor tensor;
  /// True if each rank's forward passes may change it directly, as PyTorch's batch normalisation
  /// does. The training step then makes it equal on all ranks (train/step/buffers.h).
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
  /// Number of times that a layer began or ended to use sparse tensor cores.
  int64_t num_semi_sparse_changes = 0;
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
  /// Declares in the table that the layer computes with model::linear(). Its backward writes the
  /// weight's gradient in place, and it can compute with kept elements only.
  void uses_linear();
  /// State of the weight's in-place gradient; null before uses_linear().
  const std::shared_ptr<GradInPlace>& grad_in_place() const { return grad_in_place_; }
  /// Products that the weight's mask allows (follow_mask()).
  const MaskedProducts* masked() const { return masked_.get(); }
  /// Weight in the table, without the hook.
  const at::Tensor& plain_weight() const { return weight_; }

 private:
  LayerTable* table_;
  int64_t index_;  // in table_->layers
  at::Tensor weight_;
  at::Tensor bias_O_;
  std::shared_ptr<GradInPlace> grad_in_place_;
  std::shared_ptr<MaskedProducts> masked_;  // shared with the table's callback
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

/// Batch normalisation of images by channel: [B, C, H, W] -> [B, C, H, W], gamma × (x - mean) /
/// sqrt(variance + epsilon) + beta. model/batch_norm.h defines mean and variance.
///
/// Names: <name>.gamma, .beta (parameters without weight decay), <name>.moving_mean,
/// .moving_variance (buffers), and <name>.num_batches (number of their updates). Or PyTorch's names
/// (NormNames).
///
/// Source: Ioffe, Szegedy, arXiv 1502.03167, algorithm 1.
class BatchNorm {
 public:
  /// Adds itself to the table, after the table's last layer, which it normalises.
  BatchNorm(const std::string& name, int64_t num_channels, NormNames names, LayerTable* table);
  BatchNorm(const std::string& name, int64_t num_channels, LayerTable* table)
      : BatchNorm(name, num_channels, NormNames::kTensorFlow, table) {}
  at::Tensor operator()(const at::Tensor& inputs_BCHW) const;
  NetworkLayer description() const;

 private:
  bool goes_by_moving_statistics() const;
  at::Tensor by_moving_statistics(const at::Tensor& inputs_BCHW) const;
  at::Tensor by_own_samples(const at::Tensor& inputs_BCHW) const;
  at::Tensor by_samples_of_all_ranks(const at::Tensor& inputs_BCHW) const;
  void keep(SeenBatch batch) const { state_.seen.push_back(std::move(batch)); }

  const std::string name_;
  const NormNames names_;
  const BatchNormTable& norms_;
  BatchNormState& state_;
  at::Tensor gamma_C_, beta_C_;
};

/// Dropout. Training sets each element to 0 with probability `share` and scales the others, so that
/// the mean stays the same. Evaluation changes nothing.
///
/// The choice is a pure function of (seed, step, index of the sample in the global batch, layer,
/// index in the sample). So the batch may be split between ranks in any way, on any device.
///
/// Source: Srivastava et al., JMLR 15 (2014).
class Dropout {
 public:
  /// share: in [0, 1), rounded to a multiple of 1/65536.
  Dropout(const std::string& name, double share, int64_t seed, const LayerTable* table);

  /// False if elements pass unchanged.
  bool is_on() const { return num_kept_ < kOf && table_->norms.is_training(); }
  /// Applies dropout to samples: [B, ...] -> the same shape.
  at::Tensor operator()(const at::Tensor& inputs_BX) const;
  /// Factors for elements of this shape: 0, or 1 / (1 - share). No gradient.
  at::Tensor mask(const at::Tensor& inputs_BX) const;

 private:
  static constexpr int64_t kOf = 65536;

  const LayerTable* table_;
  int64_t seed_, name_hash_;
  int64_t num_kept_;  // of kOf
};

/// Parameters of a random mask. Element n of sample s is kept if 16 bits of `random` are less than
/// num_kept: those at position n % 4 of word s × words + n / 4. N = elements of a sample.
struct MaskDraw {
  CounterRandom random;
  int64_t first_sample = 0, num_kept = 0;
  float kept_value = 1;
};
/// Returns the mask, float32 [B, N]: with a loop on the CPU, or with tensor operations on any
/// device. Both give the same values.
at::Tensor drawn_by_loop(const MaskDraw& draw, int64_t num_samples, int64_t num_numbers);
at::Tensor drawn_by_tensors(const MaskDraw& draw, int64_t num_samples, int64_t num_numbers,
                            at::Device device);

// Building blocks of token networks (GPT, vision transformers). Symbols: B = samples, T = tokens of
// a sample, W = width of a token, A = attention heads, D = W / A.

/// Tensor without a layer, to be added to the table.
struct FreeParameter {
  std::string name;  ///< full name
  std::vector<int64_t> shape;
  Initial values;
  bool prunable = false, decayed = false;
};
at::Tensor add_parameter(const FreeParameter& parameter, int64_t seed, LayerTable* table);

/// Layer normalisation [..., W] -> [..., W]: mean 0 and variance 1 per token, times <name>.weight
/// plus <name>.bias. No weight decay. Source: Ba, Kiros, Hinton, arXiv 1607.06450.
class LayerNorm {
 public:
  LayerNorm(const std::string& name, int64_t width, double epsilon, bool has_bias,
            LayerTable* table);
  at::Tensor operator()(const at::Tensor& inputs) const;
  NetworkLayer description() const;

 private:
  std::string name_;
  at::Tensor weight_W_, bias_W_;
  double epsilon_;
};

/// Embedding of int64 [...] in [0, rows) -> [..., W]: rows of <name>.weight [rows, W]. The weight
/// decays and is not prunable.
class Embedding {
 public:
  Embedding(const std::string& name, int64_t num_rows, int64_t width, Initial values, int64_t seed,
            LayerTable* table);
  at::Tensor operator()(const at::Tensor& indices) const;
  NetworkLayer description() const { return {.kind = LayerKind::kEmbedding, .name = name_}; }
  const at::Tensor& weight() const { return weight_RW_; }

 private:
  std::string name_;
  at::Tensor weight_RW_;
};

/// Attention Softmax(q kᵀ / sqrt(D)) v by heads. qkv_BTX: [B, T, 3W], queries, keys and values next
/// to each other. causal: a token only sees itself and earlier ones. dropout: applies to the
/// attention weights. Source: Vaswani et al., arXiv 1706.03762, section 3.2.
at::Tensor attention(const at::Tensor& qkv_BTX, int64_t num_heads, bool causal,
                     const Dropout& dropout);

}  // namespace lockstep::model
