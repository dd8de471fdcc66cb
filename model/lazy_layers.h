#pragma once

#include <cstdint>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "base/tensors/params.h"

/// Layers for LibTorch modules that take their shape from their first input. Their parameters do
/// not exist before the first forward(). Names, shapes and initial values are those of
/// torch::nn::Linear and torch::nn::Conv2d. Create the optimizer after the model's first forward().
namespace lockstep::model {

/// Common part of both layers: weight and bias, created once.
class LazyLayer : public torch::nn::Module, public DeferredVariables {
 public:
  bool is_built() const { return weight_.defined(); }
  std::vector<std::string> names_to_come() const override;

 protected:
  LazyLayer(std::string name, bool with_bias)
      : torch::nn::Module(std::move(name)), with_bias_(with_bias) {}
  /// Creates weight [O, ...] and bias [O] on the input's device, uniform in ±1/sqrt(fan_in), and
  /// announces them. If a watcher throws, the layer stays unchanged.
  void build(at::IntArrayRef weight_shape, const at::TensorOptions& options);

  at::Tensor weight_, bias_O_;

 private:
  bool with_bias_;
};

/// Linear layer [..., I] -> [..., O]; weight [O, I].
class LazyLinearImpl final : public LazyLayer {
 public:
  explicit LazyLinearImpl(int64_t num_outputs, bool with_bias = true);
  at::Tensor forward(const at::Tensor& inputs);

 private:
  int64_t num_outputs_;
};

/// Symbols: K = width and height of the kernel.
struct LazyConv2dOptions {
  int64_t num_outputs = 1;
  int64_t kernel_size = 3;
  int64_t stride = 1;
  int64_t padding = 0;
  bool with_bias = true;
};

/// Convolution [B, I, H, W] -> [B, O, H', W']; weight [O, I, K, K].
class LazyConv2dImpl final : public LazyLayer {
 public:
  explicit LazyConv2dImpl(const LazyConv2dOptions& options);
  at::Tensor forward(const at::Tensor& inputs_BIHW);

 private:
  LazyConv2dOptions options_;
};

TORCH_MODULE(LazyLinear);
TORCH_MODULE(LazyConv2d);

}  // namespace lockstep::model
