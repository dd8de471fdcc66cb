#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

/// Description of a network as a list of layers, for exporters (infer/exports/).
namespace lockstep::model {

enum class LayerKind {
  kFlatten,    ///< [B, X...] -> [B, product of X]
  kLinear,     ///< [B, I] -> [B, O]: x weightᵀ + bias
  kConv2d,     ///< [B, I, H, W] -> [B, O, ...]: weight [O, I / groups, kernel, kernel]
  kBatchNorm,  ///< evaluation: gamma (x - moving_mean) / sqrt(moving_variance + epsilon) + beta
  kMaxPool2d,  ///< [B, C, H, W] -> maximum of each kernel × kernel, ignoring a rest at the border
  kGlobalAveragePool,  ///< [B, C, H, W] -> [B, C, 1, 1]: the mean of each channel
  kChannelsFirst,      ///< [B, H, W, C] -> [B, C, H, W]
  kRelu,
  kGelu,  ///< x Φ(x), with the error function, not the tanh approximation
  kTanh,
  kOther,  ///< layer of a user's network; exporters refuse it by its name
};

/// Naming scheme for the tensors of a batch normalisation.
enum class NormNames {
  kTensorFlow,  ///< gamma, beta, moving_mean, moving_variance; num_batches
  kTorch,       ///< weight, bias, running_mean, running_var; num_batches_tracked
};

/// Step of a forward pass. Its tensors are parameters and buffers of the model. kLinear, kConv2d:
/// <name>.weight, .bias. kBatchNorm: <name>.gamma, .beta, .moving_mean, .moving_variance, or as in
/// `norm_names`. Other kinds have none.
struct NetworkLayer {
  LayerKind kind = LayerKind::kOther;
  std::string name = {};      ///< dotted; empty for kinds without tensors
  bool has_bias = true;       ///< kLinear, kConv2d
  int64_t kernel_extent = 1;  ///< kConv2d, kMaxPool2d: rows and columns of the window
  int64_t stride = 1;         ///< kConv2d, kMaxPool2d
  int64_t padding = 0;        ///< kConv2d: zeros on each side
  int64_t groups = 1;         ///< kConv2d
  double epsilon = 0;         ///< kBatchNorm
  NormNames norm_names = NormNames::kTensorFlow;
};

/// Computation of evaluation: each layer takes the output of the previous one.
using Network = std::vector<NetworkLayer>;

/// Name of a kind for messages: conv2d, max_pool2d, ...
std::string kind_name(LayerKind kind);

/// Returns the five suffixes of a batch normalisation's tensors, in the order of NormNames.
std::array<const char*, 5> norm_suffixes(NormNames names);

/// Names of the layer's tensors, in the order of NetworkLayer's comment.
std::vector<std::string> tensor_names(const NetworkLayer& layer);

}  // namespace lockstep::model
