#include <cmath>
#include <optional>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <fmt/format.h>

#include "model/layers.h"
#include "model/networks/model_table.h"

namespace lockstep::model {
// Blocks with normalisation first, as in torchvision. Query, key and value share one weight, which
// is a free parameter: torchvision names it in_proj_weight, without a layer of its own.
namespace {

struct VitOptions {
  int64_t patch_size = 16;
  int64_t num_layers = 12, num_heads = 12, hidden_dim = 768, mlp_dim = 3072;
  double dropout = 0, attention_dropout = 0;
};

// Epsilon and initial values are torchvision's.
constexpr double kVitEpsilon = 1e-6;
const LayerParamsOptions kVitMlp{.weight = {Initial::Kind::kXavier}, .bias = normal(1e-6)};

/// Transformer block: x + attention(norm(x)), then x + mlp(norm(x)).
class VitBlock {
 public:
  VitBlock(const std::string& name, const VitOptions& options, int64_t seed, LayerTable* table)
      : num_heads_(options.num_heads),
        norm1_(name + ".ln_1", options.hidden_dim, kVitEpsilon, /*has_bias=*/true, table),
        qkv_weight_(add_parameter({.name = name + ".self_attention.in_proj_weight",
                                   .shape = {3 * options.hidden_dim, options.hidden_dim},
                                   .values = {Initial::Kind::kXavier},
                                   .prunable = true,
                                   .decayed = true},
                                  seed, table)),
        qkv_bias_(add_parameter({.name = name + ".self_attention.in_proj_bias",
                                 .shape = {3 * options.hidden_dim},
                                 .values = constant(0)},
                                seed, table)),
        projection_(name + ".self_attention.out_proj", options.hidden_dim, options.hidden_dim,
                    {.bias = constant(0)}, seed, table),
        norm2_(name + ".ln_2", options.hidden_dim, kVitEpsilon, /*has_bias=*/true, table),
        mlp0_(name + ".mlp.0", options.hidden_dim, options.mlp_dim, kVitMlp, seed, table),
        mlp3_(name + ".mlp.3", options.mlp_dim, options.hidden_dim, kVitMlp, seed, table),
        attention_dropout_(name + ".self_attention", options.attention_dropout, seed, table),
        dropout_(name + ".dropout", options.dropout, seed, table),
        dropout2_(name + ".mlp.2", options.dropout, seed, table),
        dropout4_(name + ".mlp.4", options.dropout, seed, table) {}

  at::Tensor operator()(const at::Tensor& inputs_BTW) const {
    const at::Tensor qkv_BTX = at::linear(norm1_(inputs_BTW), qkv_weight_, qkv_bias_);
    const at::Tensor sums_BTW =
        attention(qkv_BTX, num_heads_, /*causal=*/false, attention_dropout_);
    const at::Tensor seen_BTW = inputs_BTW + dropout_(projection_(sums_BTW));
    const at::Tensor hidden_BTM = dropout2_(at::gelu(mlp0_(norm2_(seen_BTW))));
    return seen_BTW + dropout4_(mlp3_(hidden_BTM));
  }

 private:
  int64_t num_heads_;
  LayerNorm norm1_;
  at::Tensor qkv_weight_, qkv_bias_;
  Linear projection_;
  LayerNorm norm2_;
  Linear mlp0_, mlp3_;
  Dropout attention_dropout_, dropout_, dropout2_, dropout4_;
};

/// Vision transformer [B, C, H, W] -> [B, classes]: a class token followed by the image's patches,
/// with torchvision's names. Source: Dosovitskiy et al., arXiv 2010.11929.
class Vit final : public Model {
 public:
  Vit(const VitOptions& options, const ImageShape& image, const ModelInputs& data)
      : patches_("conv_proj", image.channels, options.hidden_dim, patch_options(options, image),
                 data.seed, &table_),
        class_token_11W_(add_parameter({.name = "class_token",
                                        .shape = {1, 1, options.hidden_dim},
                                        .values = constant(0),
                                        .decayed = true},
                                       data.seed, &table_)),
        positions_1TW_(add_parameter(
            {.name = "encoder.pos_embedding",
             .shape = {1,
                       1 + (image.rows / options.patch_size) * (image.columns / options.patch_size),
                       options.hidden_dim},
             .values = normal(0.02),
             .decayed = true},
            data.seed, &table_)),
        dropout_("encoder.dropout", options.dropout, data.seed, &table_) {
    for (int64_t i = 0; i < options.num_layers; ++i)
      blocks_.emplace_back(fmt::format("encoder.layers.encoder_layer_{}", i), options, data.seed,
                           &table_);
    norm_.emplace("encoder.ln", options.hidden_dim, kVitEpsilon, /*has_bias=*/true, &table_);
    // A head of zeros: the first logits are equal, whatever the image is.
    const LayerParamsOptions zeros{.weight = constant(0), .bias = constant(0)};
    head_.emplace("heads.head", options.hidden_dim, data.num_classes, zeros, data.seed, &table_);
  }

  at::Tensor forward(const at::Tensor& inputs_BCHW) override {
    // A convolution with stride = kernel maps each patch to one token.
    const at::Tensor patches_BTW = patches_(inputs_BCHW).flatten(2).transpose(1, 2);
    const at::Tensor class_B1W = class_token_11W_.expand({inputs_BCHW.size(0), -1, -1});
    at::Tensor values_BTW = dropout_(at::cat({class_B1W, patches_BTW}, 1) + positions_1TW_);
    for (const VitBlock& block : blocks_) values_BTW = block(values_BTW);
    return (*head_)((*norm_)(values_BTW.select(1, 0)));  // output of the class token only
  }

 private:
  static Conv2dOptions patch_options(const VitOptions& options, const ImageShape& image) {
    // torchvision draws conv_proj with a truncated normal of the same deviation.
    const auto fan_in =
        static_cast<double>(image.channels * options.patch_size * options.patch_size);
    return {.kernel = options.patch_size,
            .stride = options.patch_size,
            .params = {.weight = normal(1 / std::sqrt(fan_in)), .bias = constant(0)}};
  }

  Conv2d patches_;
  at::Tensor class_token_11W_, positions_1TW_;
  Dropout dropout_;
  std::vector<VitBlock> blocks_;
  std::optional<LayerNorm> norm_;
  std::optional<Linear> head_;
};

std::unique_ptr<Model> make_vit(const VitOptions& options, const ModelInputs& data) {
  const ImageShape image = require_images(data, "vit", options.patch_size);
  require_fit(image.rows % options.patch_size == 0 && image.columns % options.patch_size == 0,
              "vit", fmt::format("images of whole patches of {0}x{0}", options.patch_size), data);
  return std::make_unique<Vit>(options, image, data);
}

VitOptions read_vit(ConfigReader* in) {
  VitOptions options;
  in->read("patch_size", &options.patch_size, between(1, 1e4), "vit: rows and columns of a patch");
  in->read("num_layers", &options.num_layers, between(1, 1e4), "vit: number of blocks");
  in->read("num_heads", &options.num_heads, between(1, 1e4), "vit: attention heads");
  in->read("hidden_dim", &options.hidden_dim, between(1, 1e6),
           "vit: embedding width; a multiple of num_heads");
  in->read("mlp_dim", &options.mlp_dim, between(1, 1e6), "vit: hidden width of a block's MLP");
  in->read("dropout", &options.dropout, half_open(0, 1), "vit: dropout probability");
  in->read("attention_dropout", &options.attention_dropout, half_open(0, 1),
           "vit: dropout probability of the attention weights");
  if (options.hidden_dim % options.num_heads != 0)
    in->fault("hidden_dim", fmt::format("'model.hidden_dim' is {}, not a multiple of the {} heads",
                                        options.hidden_dim, options.num_heads));
  return options;
}

}  // namespace

ModelType vit_type() {
  return {"vit", [](ConfigReader* in) -> MakeModel {
            return [options = read_vit(in)](const ModelInputs& data) {
              return make_vit(options, data);
            };
          }};
}

}  // namespace lockstep::model
