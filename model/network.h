#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

/// A network as a list of layers, for who writes it down in another language (daemon/exports/).
namespace lockstep::model {

enum class LayerKind {
  kFlatten,    ///< [B, X...] -> [B, product of X]
  kLinear,     ///< [B, I] -> [B, O]: x weightᵀ + bias
  kConv2d,     ///< [B, I, H, W] -> [B, O, ...]: weight [O, I / groups, kernel, kernel]
  kBatchNorm,  ///< of evaluation: gamma (x - moving_mean) / sqrt(moving_variance + epsilon) + beta
  kMaxPool2d,  ///< [B, C, H, W] -> largest of each kernel × kernel, a rest at the border dropped
  kGlobalAveragePool,  ///< [B, C, H, W] -> [B, C, 1, 1]: the mean of each channel
  kChannelsFirst,      ///< [B, H, W, C] -> [B, C, H, W]
  kRelu,
  kGelu,  ///< x Φ(x), with the error function, not its approximation by tanh
  kTanh,
  kOther,  ///< of a network that is not Lockstep's own; exporters refuse it by its name
};

/// Whose names the tensors of a batch normalisation have.
enum class NormNames {
  kTensorFlow,  ///< gamma, beta, moving_mean, moving_variance; num_batches
  kTorch,       ///< weight, bias, running_mean, running_var; num_batches_tracked
};

/// One step of a forward pass. Its tensors are parameters and buffers of the model, named
/// <name>.weight, .bias (kLinear, kConv2d), <name>.gamma, .beta, .moving_mean, .moving_variance or
/// what `norm_names` says (kBatchNorm); other kinds have none.
struct NetworkLayer {
  LayerKind kind = LayerKind::kOther;
  std::string name = {};      ///< dotted; empty where a kind has no tensors
  bool has_bias = true;       ///< kLinear, kConv2d
  int64_t kernel_extent = 1;  ///< kConv2d, kMaxPool2d: rows and columns of the window
  int64_t stride = 1;         ///< kConv2d, kMaxPool2d
  int64_t padding = 0;        ///< kConv2d: zeros on each side
  int64_t groups = 1;         ///< kConv2d
  double epsilon = 0;         ///< kBatchNorm
  NormNames norm_names = NormNames::kTensorFlow;
};

/// What evaluation computes: each layer takes what the one before gave.
using Network = std::vector<NetworkLayer>;

/// conv2d, max_pool2d, ...: for messages.
std::string kind_name(LayerKind kind);

/// The five names that follow a batch normalisation's own, in the order above.
std::array<const char*, 5> norm_suffixes(NormNames names);

/// Names of the layer's tensors, in the order in which NetworkLayer lists them.
std::vector<std::string> tensor_names(const NetworkLayer& layer);

}  // namespace lockstep::model
