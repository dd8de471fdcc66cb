#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "model/dropout.h"
#include "model/layers.h"

/// What networks of tokens (GPT, vision transformers) are made of. Symbols: B = samples, T =
/// tokens of a sample, W = width of a token, A = heads of attention, D = W / A.
namespace lockstep::model {

/// A tensor that no layer holds, entered in the table.
struct FreeParameter {
  std::string name;  ///< full
  std::vector<int64_t> shape;
  Initial values;
  bool prunable = false, decayed = false;
};
at::Tensor add_parameter(const FreeParameter& parameter, int64_t seed, LayerTable* table);

/// [..., W] -> [..., W]: each token to mean 0 and variance 1, times <name>.weight plus <name>.bias.
/// Neither decays. Source: Ba, Kiros, Hinton, arXiv 1607.06450.
class LayerNorm {
 public:
  LayerNorm(const std::string& name, int64_t width, double epsilon, bool has_bias,
            LayerTable* table);
  at::Tensor operator()(const at::Tensor& inputs) const;

 private:
  at::Tensor weight_W_, bias_W_;
  double epsilon_;
};

/// int64 [...] in [0, rows) -> [..., W]: rows of <name>.weight [rows, W], which decays and is not
/// prunable.
class Embedding {
 public:
  Embedding(const std::string& name, int64_t num_rows, int64_t width, Initial values, int64_t seed,
            LayerTable* table);
  at::Tensor operator()(const at::Tensor& indices) const;
  const at::Tensor& weight() const { return weight_RW_; }

 private:
  at::Tensor weight_RW_;
};

/// Softmax(q kᵀ / sqrt(D)) v by heads. `qkv_BTX`: [B, T, 3W], queries, keys and values beside each
/// other. `causal`: a token sees itself and those before it. `dropout` drops weights of the sum.
/// Source: Vaswani et al., arXiv 1706.03762, section 3.2.
at::Tensor attention(const at::Tensor& qkv_BTX, int64_t num_heads, bool causal,
                     const Dropout& dropout);

}  // namespace lockstep::model
