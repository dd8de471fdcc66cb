#include "model/layers.h"

#include <cmath>

#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>

#include "base/digest.h"
#include "base/random.h"
#include "model/linear_function.h"

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

}  // namespace

LayerParams::LayerParams(const std::string& name, at::IntArrayRef weight_shape, int64_t seed,
                         LayerTable* table)
    : table_(table), index_(static_cast<int64_t>(table->layers.size())) {
  int64_t fan_in = 1;
  for (const int64_t extent : weight_shape.slice(1)) fan_in *= extent;
  weight_ = uniform_parameter(name + ".weight", weight_shape, fan_in, seed);
  bias_O_ = uniform_parameter(name + ".bias", {weight_shape[0]}, fan_in, seed);
  table->layers.push_back(
      {.name = name, .weight_param = static_cast<int64_t>(table->params.size())});
  table->params.push_back(
      {.name = name + ".weight", .tensor = weight_, .prunable = true, .decayed = true});
  table->params.push_back({.name = name + ".bias", .tensor = bias_O_});
}

void LayerParams::may_overwrite_grad() {
  grad_is_stale_ = std::make_shared<bool>(false);
  const auto weight = static_cast<size_t>(table_->layers[static_cast<size_t>(index_)].weight_param);
  table_->params[weight].grad_is_stale = grad_is_stale_;
}

Linear::Linear(const std::string& name, int64_t num_inputs, int64_t num_outputs, int64_t seed,
               LayerTable* table)
    : params_(name, {num_outputs, num_inputs}, seed, table) {
  params_.may_overwrite_grad();
}

at::Tensor Linear::operator()(const at::Tensor& inputs_BI) const {
  const at::Tensor inputs = params_.input(inputs_BI);
  const at::Tensor weight = params_.weight();
  if (!weight.is_same(params_.plain_weight()))
    settle_grad(params_.plain_weight(), params_.grad_is_stale());
  return linear(inputs, weight, params_.bias(), params_.grad_is_stale());
}

NetworkLayer Linear::description() const {
  return {.kind = LayerKind::kLinear, .name = params_.name()};
}

Conv3x3::Conv3x3(const std::string& name, int64_t num_inputs, int64_t num_outputs, int64_t stride,
                 int64_t seed, LayerTable* table)
    : params_(name, {num_outputs, num_inputs, 3, 3}, seed, table), stride_(stride) {}

at::Tensor Conv3x3::operator()(const at::Tensor& inputs_BIHW) const {
  const at::Tensor inputs = params_.input(inputs_BIHW);
  return at::conv2d(inputs, params_.weight(), params_.bias(), {stride_, stride_}, {1, 1});
}

NetworkLayer Conv3x3::description() const {
  return {.kind = LayerKind::kConv2d,
          .name = params_.name(),
          .kernel_extent = 3,
          .stride = stride_,
          .padding = 1};
}

}  // namespace lockstep::model
