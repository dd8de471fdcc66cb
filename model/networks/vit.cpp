#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <fmt/format.h>

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

/// Vision transformer [B, C, H, W] -> [B, classes]: a class token followed by the image's patches,
/// with torchvision's names. Source: Dosovitskiy et al., arXiv 2010.11929.
class Vit final : public Sequence {
 public:
  Vit(const VitOptions& options, const ImageShape& image, const ModelInputs& data)
      : options_(options), seed_(data.seed) {
    const int64_t width = options.hidden_dim, rows = image.rows / options.patch_size,
                  columns = image.columns / options.patch_size;
    // A convolution with stride = kernel maps each patch to one token.
    add<Conv2d>("conv_proj", image.channels, width, patch_options(image), seed_);
    add({.kind = LayerKind::kPatches, .image = {rows, columns}});
    const at::Tensor class_token_11W = add_parameter(
        {.name = "class_token", .shape = {1, 1, width}, .values = constant(0), .decayed = true},
        seed_, &table_);
    add({.kind = LayerKind::kPrepend, .name = "class_token"},
        [class_token_11W](const at::Tensor& values_BTW) {
          return at::cat({class_token_11W.expand({values_BTW.size(0), -1, -1}), values_BTW}, 1);
        });
    const at::Tensor positions_1TW = add_parameter({.name = "encoder.pos_embedding",
                                                    .shape = {1, 1 + rows * columns, width},
                                                    .values = normal(0.02),
                                                    .decayed = true},
                                                   seed_, &table_);
    add({.kind = LayerKind::kAddPositions, .name = "encoder.pos_embedding"},
        [positions_1TW](const at::Tensor& values_BTW) { return values_BTW + positions_1TW; });
    add_dropout("encoder.dropout", options.dropout, seed_);
    for (int64_t i = 0; i < options.num_layers; ++i)
      add_block(fmt::format("encoder.layers.encoder_layer_{}", i));
    add({.kind = LayerKind::kFirstToken});  // output of the class token only
    add_norm("encoder.ln");
    // A head of zeros: the first logits are equal, whatever the image is.
    const LayerParamsOptions zeros{.weight = constant(0), .bias = constant(0)};
    add<Linear>("heads.head", width, data.num_classes, zeros, seed_);
  }

 private:
  /// Adds a transformer block: x + attention(norm(x)), then x + mlp(norm(x)).
  void add_block(const std::string& name) {
    const int64_t width = options_.hidden_dim, before = end();
    add_norm(name + ".ln_1");
    add_in_projection(name + ".self_attention.in_proj");
    add_attention({.num_heads = options_.num_heads, .head_width = width / options_.num_heads},
                  Dropout(name + ".self_attention", options_.attention_dropout, seed_, &table_));
    add<Linear>(name + ".self_attention.out_proj", width, width,
                LayerParamsOptions{.bias = constant(0)}, seed_);
    add_dropout(name + ".dropout", options_.dropout, seed_);
    add_sum(before, end());
    const int64_t seen = end();
    add_norm(name + ".ln_2");
    add<Linear>(name + ".mlp.0", width, options_.mlp_dim, kVitMlp, seed_);
    add({.kind = LayerKind::kGelu});
    add_dropout(name + ".mlp.2", options_.dropout, seed_);
    add<Linear>(name + ".mlp.3", options_.mlp_dim, width, kVitMlp, seed_);
    add_dropout(name + ".mlp.4", options_.dropout, seed_);
    add_sum(seen, end());
  }

  void add_norm(const std::string& name) {
    add<LayerNorm>(name, options_.hidden_dim, kVitEpsilon, /*has_bias=*/true);
  }

  void add_in_projection(const std::string& name) {
    const int64_t width = options_.hidden_dim;
    const at::Tensor weight = add_parameter({.name = name + "_weight",
                                             .shape = {3 * width, width},
                                             .values = {Initial::Kind::kXavier},
                                             .prunable = true,
                                             .decayed = true},
                                            seed_, &table_);
    const at::Tensor bias = add_parameter(
        {.name = name + "_bias", .shape = {3 * width}, .values = constant(0)}, seed_, &table_);
    add({.kind = LayerKind::kLinear, .name = name, .separator = '_'},
        [weight, bias](const at::Tensor& values_BTW) {
          return at::linear(values_BTW, weight, bias);
        });
  }

  Conv2dOptions patch_options(const ImageShape& image) const {
    // torchvision draws conv_proj with a truncated normal of the same deviation.
    const int64_t extent = options_.patch_size;
    const auto fan_in = static_cast<double>(image.channels * extent * extent);
    return {.kernel = extent,
            .stride = extent,
            .params = {.weight = normal(1 / std::sqrt(fan_in)), .bias = constant(0)}};
  }

  const VitOptions options_;
  const int64_t seed_;
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
