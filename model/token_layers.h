#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "model/dropout.h"
#include "model/layers.h"

/// Building blocks of token networks (GPT, vision transformers). Symbols: B = samples, T = tokens
/// of a sample, W = width of a token, A = attention heads, D = W / A.
namespace lockstep::model {

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

 private:
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
  const at::Tensor& weight() const { return weight_RW_; }

 private:
  at::Tensor weight_RW_;
};

/// Attention Softmax(q kᵀ / sqrt(D)) v by heads. qkv_BTX: [B, T, 3W], queries, keys and values next
/// to each other. causal: a token only sees itself and earlier ones. dropout: applies to the
/// attention weights. Source: Vaswani et al., arXiv 1706.03762, section 3.2.
at::Tensor attention(const at::Tensor& qkv_BTX, int64_t num_heads, bool causal,
                     const Dropout& dropout);

}  // namespace lockstep::model
