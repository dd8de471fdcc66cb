#include "model/layers.h"

#include <cmath>

#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>

#include "base/digest.h"
#include "base/random.h"

namespace lockstep::model {
namespace {

at::Tensor uniform_parameter(const std::string& name, at::IntArrayRef shape, int64_t fan_in,
                             int64_t seed) {
  at::Tensor values = at::empty(shape, at::kFloat);
  const CounterRandom random{seed, fnv1a64(name)};
  const double bound = 1 / std::sqrt(static_cast<double>(fan_in));
  auto* data = values.mutable_data_ptr<float>();
  for (int64_t i = 0; i < values.numel(); ++i)
    data[i] = static_cast<float>(bound * (2 * random.uniform(i) - 1));
  return values.set_requires_grad(true);
}

/// Adds <name>.weight and <name>.bias. Returns both; they share memory with the table's.
std::pair<at::Tensor, at::Tensor> add_layer(const std::string& name, at::IntArrayRef weight_shape,
                                            int64_t seed, ParamTable* params) {
  const int64_t num_outputs = weight_shape[0];
  int64_t fan_in = 1;
  for (const int64_t extent : weight_shape.slice(1)) fan_in *= extent;
  at::Tensor weight = uniform_parameter(name + ".weight", weight_shape, fan_in, seed);
  at::Tensor bias = uniform_parameter(name + ".bias", {num_outputs}, fan_in, seed);
  params->push_back(
      {.name = name + ".weight", .tensor = weight, .prunable = true, .decayed = true});
  params->push_back({.name = name + ".bias", .tensor = bias});
  return {weight, bias};
}

}  // namespace

Linear::Linear(const std::string& name, int64_t num_inputs, int64_t num_outputs, int64_t seed,
               ParamTable* params) {
  std::tie(weight_OI_, bias_O_) = add_layer(name, {num_outputs, num_inputs}, seed, params);
}

at::Tensor Linear::operator()(const at::Tensor& inputs_BI) const {
  return at::linear(inputs_BI, weight_OI_, bias_O_);
}

Conv3x3::Conv3x3(const std::string& name, int64_t num_inputs, int64_t num_outputs, int64_t stride,
                 int64_t seed, ParamTable* params)
    : stride_(stride) {
  std::tie(weight_OI33_, bias_O_) = add_layer(name, {num_outputs, num_inputs, 3, 3}, seed, params);
}

at::Tensor Conv3x3::operator()(const at::Tensor& inputs_BIHW) const {
  return at::conv2d(inputs_BIHW, weight_OI33_, bias_O_, {stride_, stride_}, {1, 1});
}

}  // namespace lockstep::model
