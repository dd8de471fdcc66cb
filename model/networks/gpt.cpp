#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <fmt/format.h>

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

/// Language model with nanoGPT's shape and names: int64 tokens [B, T] -> logits [B, T, V] of the
/// token after each. V = data.num_classes, T up to data.input_shape[0]. The last layer shares the
/// embedding's weight. Source: Radford et al., "Language models are unsupervised multitask
/// learners", 2019; github.com/karpathy/nanoGPT.
class Gpt final : public Sequence {
 public:
  Gpt(const GptOptions& options, const ModelInputs& data) : options_(options), seed_(data.seed) {
    const Embedding tokens("transformer.wte", data.num_classes, options.width, normal(0.02), seed_,
                           &table_);
    add(tokens.description(), tokens);
    const Embedding positions("transformer.wpe", data.input_shape[0], options.width, normal(0.02),
                              seed_, &table_);
    // Shorter sequences use the first positions.
    add({.kind = LayerKind::kAddPositions, .name = "transformer.wpe.weight"},
        [positions](const at::Tensor& values_BTW) {
          return values_BTW + positions.weight().narrow(0, 0, values_BTW.size(1));
        });
    add_dropout("transformer.drop", options.dropout, seed_);
    for (int64_t i = 0; i < options.layers; ++i) add_block(fmt::format("transformer.h.{}", i));
    add_norm("transformer.ln_f");
    // Shared weight: the gradient is the sum of both uses.
    add({.kind = LayerKind::kLinear, .name = "transformer.wte", .has_bias = false},
        [tokens](const at::Tensor& values_BTW) { return at::linear(values_BTW, tokens.weight()); });
  }

 private:
  /// Adds a transformer block: x + attention(norm(x)), then x + mlp(norm(x)).
  void add_block(const std::string& name) {
    const int64_t width = options_.width, before = end();
    add_norm(name + ".ln_1");
    add_linear(name + ".attn.c_attn", width, 3 * width, /*is_added=*/false);
    add_attention(
        {.num_heads = options_.heads, .head_width = width / options_.heads, .is_causal = true},
        Dropout(name + ".attn.attn_dropout", options_.dropout, seed_, &table_));
    add_linear(name + ".attn.c_proj", width, width, /*is_added=*/true);
    add_dropout(name + ".attn.resid_dropout", options_.dropout, seed_);
    add_sum(before, end());
    const int64_t seen = end();
    add_norm(name + ".ln_2");
    add_linear(name + ".mlp.c_fc", width, 4 * width, /*is_added=*/false);
    add({.kind = LayerKind::kGelu});
    add_linear(name + ".mlp.c_proj", 4 * width, width, /*is_added=*/true);
    add_dropout(name + ".mlp.dropout", options_.dropout, seed_);
    add_sum(seen, end());
  }

  void add_norm(const std::string& name) {
    add<LayerNorm>(name, options_.width, kEpsilon, options_.bias);
  }
  void add_linear(const std::string& name, int64_t num_inputs, int64_t num_outputs, bool is_added) {
    add<Linear>(name, num_inputs, num_outputs, gpt_linear(options_, is_added), seed_);
  }

  const GptOptions options_;
  const int64_t seed_;
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
