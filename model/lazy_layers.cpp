#include "model/lazy_layers.h"

#include <cmath>

#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <c10/core/GradMode.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::model {
// A layer builds its parameters in its first forward, when the number of inputs is known.
namespace {

void require_dims(const at::Tensor& inputs, bool fits, std::string_view wanted) {
  if (!fits)
    throw Error(
        ExitCode::kConfig, "model",
        fmt::format("a lazy layer takes {}, not [{}]", wanted, fmt::join(inputs.sizes(), ", ")));
}

}  // namespace

std::vector<std::string> LazyLayer::names_to_come() const {
  if (is_built()) return {};
  return with_bias_ ? std::vector<std::string>{"weight", "bias"}
                    : std::vector<std::string>{"weight"};
}

void LazyLayer::build(at::IntArrayRef weight_shape, const at::TensorOptions& options) {
  const int64_t fan_in = c10::multiply_integers(weight_shape.slice(1));
  const double bound = fan_in > 0 ? 1 / std::sqrt(static_cast<double>(fan_in)) : 0;
  at::Tensor weight = at::empty(weight_shape, options).uniform_(-bound, bound);
  at::Tensor bias =
      with_bias_ ? at::empty({weight_shape[0]}, options).uniform_(-bound, bound) : at::Tensor();
  // Announce first: a watcher may throw, and then nothing must be registered.
  announce("weight", weight);
  if (with_bias_) announce("bias", bias);
  weight_ = register_parameter("weight", weight);
  bias_O_ = register_parameter("bias", bias, with_bias_);
}

LazyLinearImpl::LazyLinearImpl(int64_t num_outputs, bool with_bias)
    : LazyLayer("LazyLinear", with_bias), num_outputs_(num_outputs) {}

at::Tensor LazyLinearImpl::forward(const at::Tensor& inputs) {
  if (!is_built()) {
    require_dims(inputs, inputs.dim() > 0, "inputs [..., I]");
    // The input's type and device, but not its requires_grad.
    build({num_outputs_, inputs.size(-1)}, inputs.options().requires_grad(false));
  }
  return at::linear(inputs, weight_, bias_O_);
}

LazyConv2dImpl::LazyConv2dImpl(const LazyConv2dOptions& options)
    : LazyLayer("LazyConv2d", options.with_bias), options_(options) {}

at::Tensor LazyConv2dImpl::forward(const at::Tensor& inputs_BIHW) {
  if (!is_built()) {
    require_dims(inputs_BIHW, inputs_BIHW.dim() == 4, "inputs [B, I, H, W]");
    build({options_.num_outputs, inputs_BIHW.size(1), options_.kernel_size, options_.kernel_size},
          inputs_BIHW.options().requires_grad(false));
  }
  return at::conv2d(inputs_BIHW, weight_, bias_O_, options_.stride, options_.padding);
}

}  // namespace lockstep::model
