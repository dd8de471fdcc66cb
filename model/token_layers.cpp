#include "model/token_layers.h"

#include <cmath>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>

namespace lockstep::model {
namespace {

/// Computes scaled_dot_product_attention, with Lockstep's dropout between softmax and sum.
at::Tensor attention_with_dropout(const at::Tensor& q_BATD, const at::Tensor& k_BATD,
                                  const at::Tensor& v_BATD, bool causal, const Dropout& dropout) {
  const int64_t num_tokens = q_BATD.size(2);
  // Scales the queries (T × D elements) instead of the scores (T × T).
  at::Tensor scores_BATT = at::matmul(q_BATD * (1 / std::sqrt(static_cast<double>(q_BATD.size(3)))),
                                      k_BATD.transpose(-2, -1));
  // -inf before the softmax gives later tokens a weight of 0.
  if (causal)
    scores_BATT =
        scores_BATT + at::full({num_tokens, num_tokens}, -std::numeric_limits<double>::infinity(),
                               scores_BATT.options())
                          .triu_(1);
  return at::matmul(dropout(at::softmax(scores_BATT, -1)).to(v_BATD.scalar_type()), v_BATD);
}

}  // namespace

at::Tensor add_parameter(const FreeParameter& parameter, int64_t seed, LayerTable* table) {
  table->params.push_back(
      {.name = parameter.name,
       .tensor = initial_parameter(parameter.name, parameter.shape, parameter.values, seed),
       .prunable = parameter.prunable,
       .decayed = parameter.decayed});
  return table->params.back().tensor;
}

LayerNorm::LayerNorm(const std::string& name, int64_t width, double epsilon, bool has_bias,
                     LayerTable* table)
    : weight_W_(add_parameter({name + ".weight", {width}, constant(1)}, 0, table)),
      epsilon_(epsilon) {
  if (has_bias) bias_W_ = add_parameter({name + ".bias", {width}, constant(0)}, 0, table);
}

at::Tensor LayerNorm::operator()(const at::Tensor& inputs) const {
  return at::layer_norm(inputs, weight_W_.sizes(), weight_W_, bias_W_, epsilon_);
}

Embedding::Embedding(const std::string& name, int64_t num_rows, int64_t width, Initial values,
                     int64_t seed, LayerTable* table)
    : weight_RW_(add_parameter(
          {.name = name + ".weight", .shape = {num_rows, width}, .values = values, .decayed = true},
          seed, table)) {}

at::Tensor Embedding::operator()(const at::Tensor& indices) const {
  return at::embedding(weight_RW_, indices);
}

at::Tensor attention(const at::Tensor& qkv_BTX, int64_t num_heads, bool causal,
                     const Dropout& dropout) {
  const int64_t num_tokens = qkv_BTX.size(1), width = qkv_BTX.size(2) / 3;
  const std::vector<at::Tensor> parts = qkv_BTX.split(width, 2);
  const auto by_head = [&](const at::Tensor& part_BTW) {
    return part_BTW.view({qkv_BTX.size(0), num_tokens, num_heads, width / num_heads})
        .transpose(1, 2);
  };
  const at::Tensor q_BATD = by_head(parts[0]), k_BATD = by_head(parts[1]),
                   v_BATD = by_head(parts[2]);
  // ATen's fused attention has its own dropout, whose random numbers depend on the device.
  const at::Tensor sums_BATD =
      dropout.is_on() ? attention_with_dropout(q_BATD, k_BATD, v_BATD, causal, dropout)
                      : at::scaled_dot_product_attention(q_BATD, k_BATD, v_BATD, {}, 0.0, causal);
  return sums_BATD.transpose(1, 2).reshape({qkv_BTX.size(0), num_tokens, width});
}

}  // namespace lockstep::model
