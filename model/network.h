#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

/// Description of a network as a graph of layers, for exporters (infer/exports/). Symbols: B =
/// samples, T = tokens of a sample, W = width of a token.
namespace lockstep::model {

enum class LayerKind {
  kFlatten,    ///< [B, X...] -> [B, product of X]
  kLinear,     ///< [B, ..., I] -> [B, ..., O]: x weightᵀ + bias
  kConv2d,     ///< [B, I, H, W] -> [B, O, ...]: weight [O, I / groups, kernel, kernel]
  kBatchNorm,  ///< evaluation: gamma (x - moving_mean) / sqrt(moving_variance + epsilon) + beta
  kMaxPool2d,  ///< [B, C, H, W] -> maximum of each kernel × kernel, ignoring a rest at the border
  kAdaptiveAveragePool2d,  ///< [B, C, H, W] -> [B, C, kernel, kernel]: means of equal parts
  kGlobalAveragePool,      ///< [B, C, H, W] -> [B, C, 1, 1]: the mean of each channel
  kChannelsFirst,          ///< [B, H, W, C] -> [B, C, H, W]
  kRelu,
  kGelu,  ///< x Φ(x), with the error function, not the tanh approximation
  kTanh,
  kAdd,           ///< sum of two layers' outputs of one shape
  kLayerNorm,     ///< [..., W]: weight (x - mean) / sqrt(variance + epsilon) + bias, of each W
  kAttention,     ///< queries, keys and values [B, T, 3W] -> [B, T, W], by heads
  kEmbedding,     ///< int64 [B, T] -> [B, T, W]: rows of the weight
  kPatches,       ///< [B, W, rows, columns] -> [B, T, W], T = rows × columns
  kPrepend,       ///< [B, T, W] -> [B, 1 + T, W]: the layer's tensor [1, 1, W] is the first token
  kAddPositions,  ///< [B, T, W]: adds the first T rows of the layer's tensor [T' >= T, W]
  kFirstToken,    ///< [B, T, W] -> [B, W]
  kOther,         ///< layer of a user's network; exporters refuse it by its name
};

/// Naming scheme for the tensors of a batch normalisation.
enum class NormNames {
  kTensorFlow,  ///< gamma, beta, moving_mean, moving_variance; num_batches
  kTorch,       ///< weight, bias, running_mean, running_var; num_batches_tracked
};

/// Step of a forward pass. Its tensors are parameters and buffers of the model. kLinear, kConv2d,
/// kLayerNorm: <name>.weight, .bias. kEmbedding: <name>.weight. kBatchNorm: <name>.gamma, .beta,
/// .moving_mean, .moving_variance, or as in `norm_names`. kPrepend, kAddPositions: <name>. Other
/// kinds have none.
struct NetworkLayer {
  LayerKind kind = LayerKind::kOther;
  std::string name = {};      ///< dotted; empty for kinds without tensors
  bool has_bias = true;       ///< kLinear, kConv2d, kLayerNorm
  int64_t kernel_extent = 1;  ///< kConv2d, pooling: rows and columns of the window
  int64_t stride = 1;         ///< kConv2d, kMaxPool2d
  int64_t padding = 0;        ///< kConv2d: zeros on each side; kMaxPool2d: at most kernel / 2
  int64_t groups = 1;         ///< kConv2d
  double epsilon = 0;         ///< kBatchNorm, kLayerNorm
  NormNames norm_names = NormNames::kTensorFlow;
  char separator = '.';    ///< kLinear: between name and `weight`, `bias`
  int64_t num_heads = 1;   ///< kAttention
  int64_t head_width = 1;  ///< kAttention: W / num_heads
  bool is_causal = false;  ///< kAttention: a token only sees itself and earlier ones
  /// kAdaptiveAveragePool2d, kPatches: rows and columns of the input.
  std::array<int64_t, 2> image = {1, 1};
  /// Layers whose outputs it takes, all of them before it, or kNetworkInput. Empty: the layer
  /// before it, of the first layer the network's input.
  std::vector<int64_t> inputs = {};
};
inline constexpr int64_t kNetworkInput = -1;

/// Computation of evaluation, in an order in which it can run. The last layer gives the outputs.
using Network = std::vector<NetworkLayer>;

/// Layers whose outputs layer i takes, as in NetworkLayer::inputs, never empty.
std::vector<int64_t> inputs_of(const Network& network, size_t i);

/// True if the network takes int64 tokens [B, T], not float32 inputs.
bool takes_tokens(const Network& network);

/// Name of a kind for messages: conv2d, max_pool2d, ...
std::string kind_name(LayerKind kind);

/// Returns the five suffixes of a batch normalisation's tensors, in the order of NormNames.
std::array<const char*, 5> norm_suffixes(NormNames names);

/// Names of the layer's tensors, in the order of NetworkLayer's comment.
std::vector<std::string> tensor_names(const NetworkLayer& layer);

}  // namespace lockstep::model
