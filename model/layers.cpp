#include "model/layers.h"

#include <cmath>

#include <ATen/ops/conv2d.h>

#include "model/linear_function.h"

namespace lockstep::model {

LayerParams::LayerParams(const std::string& name, at::IntArrayRef weight_shape,
                         const LayerParamsOptions& options, int64_t seed, LayerTable* table)
    : table_(table), index_(static_cast<int64_t>(table->layers.size())) {
  const std::string weight_name = name + ".weight";
  weight_ = initial_parameter(weight_name, weight_shape, options.weight, seed);
  // The weight's index is that of the next parameter.
  table->layers.push_back(
      {.name = name, .weight_param = static_cast<int64_t>(table->params.size())});
  table->params.push_back(
      {.name = weight_name, .tensor = weight_, .prunable = true, .decayed = true});
  if (!options.has_bias) return;
  const std::string bias_name = name + ".bias";
  const double bound = 1 / std::sqrt(static_cast<double>(fan_in_of(weight_shape)));
  bias_O_ =
      initial_parameter(bias_name, {weight_shape[0]}, options.bias.value_or(uniform(bound)), seed);
  table->params.push_back({.name = bias_name, .tensor = bias_O_});
}

void LayerParams::writes_grad_in_place() {
  grad_in_place_ = std::make_shared<GradInPlace>();
  const auto weight = static_cast<size_t>(table_->layers[static_cast<size_t>(index_)].weight_param);
  table_->params[weight].grad_in_place = grad_in_place_;
}

void LayerParams::may_follow_mask() {
  kept_ = std::make_shared<std::shared_ptr<const KeptWeight>>();
  const auto weight = static_cast<size_t>(table_->layers[static_cast<size_t>(index_)].weight_param);
  // Captures shared pointers and the tensor, not `this`: layers are moved after their construction.
  table_->params[weight].follow_mask = [kept = kept_, weight_OI = weight_](const uint8_t* bits) {
    kept->reset();
    // The kernels need contiguous float32 on the CPU. Elsewhere dense products are used.
    if (bits == nullptr || !weight_OI.is_cpu() || weight_OI.scalar_type() != at::kFloat) return;
    *kept = KeptWeight::make(bits, weight_OI.size(0), weight_OI.size(1));
  };
}

Linear::Linear(const std::string& name, int64_t num_inputs, int64_t num_outputs,
               const LayerParamsOptions& options, int64_t seed, LayerTable* table)
    : params_(name, {num_outputs, num_inputs}, options, seed, table) {
  params_.writes_grad_in_place();
  params_.may_follow_mask();
}

at::Tensor Linear::operator()(const at::Tensor& inputs) const {
  const at::Tensor used = params_.input(inputs);
  const at::Tensor weight = params_.weight();
  const bool is_plain = weight.is_same(params_.plain_weight());
  // With a hook, the weight in use is another tensor, whose backward adds to the gradient.
  if (!is_plain) settle_grad(params_.plain_weight(), params_.grad_in_place());
  const auto product = [&](const at::Tensor& inputs_BI) {
    return linear(inputs_BI, weight, params_.bias(), params_.grad_in_place(),
                  is_plain ? params_.kept() : nullptr);
  };
  // The products take matrices: leading dimensions are joined for the call.
  if (used.dim() == 2) return product(used);
  std::vector<int64_t> shape = used.sizes().vec();
  shape.back() = weight.size(0);
  return product(used.flatten(0, -2)).view(shape);
}

NetworkLayer Linear::description() const {
  return {.kind = LayerKind::kLinear, .name = params_.name(), .has_bias = params_.bias().defined()};
}

Conv2d::Conv2d(const std::string& name, int64_t num_inputs, int64_t num_outputs,
               const Conv2dOptions& options, int64_t seed, LayerTable* table)
    : params_(name, {num_outputs, num_inputs / options.groups, options.kernel, options.kernel},
              options.params, seed, table),
      kernel_(options.kernel),
      stride_(options.stride),
      padding_(options.padding),
      groups_(options.groups) {}

at::Tensor Conv2d::operator()(const at::Tensor& inputs_BIHW) const {
  const at::Tensor inputs = params_.input(inputs_BIHW);
  return at::conv2d(inputs, params_.weight(), params_.bias(), {stride_, stride_},
                    {padding_, padding_}, {1, 1}, groups_);
}

NetworkLayer Conv2d::description() const {
  return {.kind = LayerKind::kConv2d,
          .name = params_.name(),
          .has_bias = params_.bias().defined(),
          .kernel_extent = kernel_,
          .stride = stride_,
          .padding = padding_,
          .groups = groups_};
}

}  // namespace lockstep::model
