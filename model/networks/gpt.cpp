#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <fmt/format.h>

#include "model/layers.h"
#include "model/networks/model_table.h"

namespace lockstep::model {
namespace {

struct GptOptions {
  int64_t layers = 12, heads = 12, width = 768;
  double dropout = 0;
  bool bias = true;  ///< biases in linear layers and normalisations
};

constexpr double kEpsilon = 1e-5;

/// Linear layer with nanoGPT's initial values, smaller for layers that add to the residual stream.
LayerParamsOptions gpt_linear(const GptOptions& options, bool is_added) {
  const double deviation =
      is_added ? 0.02 / std::sqrt(2.0 * static_cast<double>(options.layers)) : 0.02;
  return {.has_bias = options.bias, .weight = normal(deviation), .bias = constant(0)};
}

/// Transformer block: x + attention(norm(x)), then x + mlp(norm(x)).
class GptBlock {
 public:
  GptBlock(const std::string& name, const GptOptions& options, int64_t seed, LayerTable* table)
      : num_heads_(options.heads),
        norm1_(name + ".ln_1", options.width, kEpsilon, options.bias, table),
        qkv_(name + ".attn.c_attn", options.width, 3 * options.width, gpt_linear(options, false),
             seed, table),
        projection1_(name + ".attn.c_proj", options.width, options.width, gpt_linear(options, true),
                     seed, table),
        norm2_(name + ".ln_2", options.width, kEpsilon, options.bias, table),
        hidden_(name + ".mlp.c_fc", options.width, 4 * options.width, gpt_linear(options, false),
                seed, table),
        projection2_(name + ".mlp.c_proj", 4 * options.width, options.width,
                     gpt_linear(options, true), seed, table),
        attention_dropout_(name + ".attn.attn_dropout", options.dropout, seed, table),
        dropout1_(name + ".attn.resid_dropout", options.dropout, seed, table),
        dropout2_(name + ".mlp.dropout", options.dropout, seed, table) {}

  at::Tensor operator()(const at::Tensor& inputs_BTW) const {
    const at::Tensor sums_BTW =
        attention(qkv_(norm1_(inputs_BTW)), num_heads_, /*causal=*/true, attention_dropout_);
    const at::Tensor seen_BTW = inputs_BTW + dropout1_(projection1_(sums_BTW));
    return seen_BTW + dropout2_(projection2_(at::gelu(hidden_(norm2_(seen_BTW)))));
  }

 private:
  int64_t num_heads_;
  LayerNorm norm1_;
  Linear qkv_, projection1_;
  LayerNorm norm2_;
  Linear hidden_, projection2_;
  Dropout attention_dropout_, dropout1_, dropout2_;
};

/// Language model with nanoGPT's shape and names: int64 tokens [B, T] -> logits [B, T, V] of the
/// token after each. V = data.num_classes, T up to data.input_shape[0]. The last layer shares the
/// embedding's weight. Source: Radford et al., "Language models are unsupervised multitask
/// learners", 2019; github.com/karpathy/nanoGPT.
class Gpt final : public Model {
 public:
  Gpt(const GptOptions& options, const ModelInputs& data)
      : tokens_("transformer.wte", data.num_classes, options.width, normal(0.02), data.seed,
                &table_),
        positions_("transformer.wpe", data.input_shape[0], options.width, normal(0.02), data.seed,
                   &table_),
        dropout_("transformer.drop", options.dropout, data.seed, &table_) {
    for (int64_t i = 0; i < options.layers; ++i)
      blocks_.emplace_back(fmt::format("transformer.h.{}", i), options, data.seed, &table_);
    norms_.emplace_back("transformer.ln_f", options.width, kEpsilon, options.bias, &table_);
  }

  at::Tensor forward(const at::Tensor& tokens_BT) override {
    // Shorter sequences use the first positions.
    const at::Tensor positions_TW = positions_.weight().narrow(0, 0, tokens_BT.size(1));
    at::Tensor values_BTW = dropout_(tokens_(tokens_BT) + positions_TW);
    for (const GptBlock& block : blocks_) values_BTW = block(values_BTW);
    // Shared weight: the gradient is the sum of both uses.
    return at::linear(norms_.back()(values_BTW), tokens_.weight());
  }

 private:
  Embedding tokens_, positions_;
  Dropout dropout_;
  std::vector<GptBlock> blocks_;
  std::vector<LayerNorm> norms_;  // one element, created after the blocks
};

void require_tokens(const ModelInputs& data) {
  require_fit(
      data.input_dtype == at::kLong && data.input_shape.size() == 1 && data.input_shape[0] > 0,
      "gpt", "int64 tokens [context]", data);
}

}  // namespace

ModelType gpt_type() {
  return {"gpt", [](ConfigReader* in) -> MakeModel {
            GptOptions options;
            in->read("layers", &options.layers, between(1, 1e4), "gpt: number of blocks");
            in->read("heads", &options.heads, between(1, 1e4), "gpt: attention heads");
            in->read("width", &options.width, between(1, 1e6),
                     "gpt: embedding width; a multiple of heads");
            in->read("dropout", &options.dropout, half_open(0, 1), "gpt: dropout probability");
            in->read("bias", &options.bias, "gpt: biases in linear layers and normalizations");
            if (options.width % options.heads != 0)
              in->fault("width", fmt::format("'model.width' is {}, not a multiple of the {} heads",
                                             options.width, options.heads));
            return [options](const ModelInputs& data) {
              require_tokens(data);
              return std::make_unique<Gpt>(options, data);
            };
          }};
}

}  // namespace lockstep::model
