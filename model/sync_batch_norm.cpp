#include "model/sync_batch_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

namespace lockstep::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const std::vector<int64_t> kAllButChannels{0, 2, 3};

/// Holder of a function, for an autograd node.
struct KeptSum final : torch::CustomClassHolder {
  explicit KeptSum(const SumOverRanks& sum_) : sum(sum_) {}
  const SumOverRanks sum;
};

/// Reshapes [C] so that it broadcasts over [B, C, H, W].
at::Tensor by_channel(const at::Tensor& values_C) { return values_C.view({1, -1, 1, 1}); }

class Normalise : public torch::autograd::Function<Normalise> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& inputs_BCHW,
                            const at::Tensor& gamma_C, const at::Tensor& beta_C,
                            const at::Tensor& mean_C, const at::Tensor& variance_C,
                            double num_values, double epsilon, const SumOverRanks& sum) {
    context->save_for_backward({inputs_BCHW, gamma_C, mean_C, (variance_C + epsilon).rsqrt()});
    context->saved_data["num_values"] = num_values;
    context->saved_data["sum"] = at::IValue::make_capsule(c10::make_intrusive<KeptSum>(sum));
    return std::get<0>(at::native_batch_norm(inputs_BCHW, gamma_C, beta_C, mean_C, variance_C,
                                             /*training=*/false, /*momentum=*/0, epsilon));
  }

  static variable_list backward(AutogradContext* context, const variable_list& outputs) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &inputs_BCHW = saved[0], &gamma_C = saved[1], &mean_C = saved[2],
                     &inverse_C = saved[3];
    // dx = gamma / sigma * (dy - mean(dy) - x_hat * mean(dy * x_hat)), with means over all ranks.
    // Source: Ioffe, Szegedy, arXiv 1502.03167, section 3. The sums below are this rank's part.
    const at::Tensor grads_BCHW = outputs[0].to(at::kFloat);
    const at::Tensor centred_BCHW = inputs_BCHW.to(at::kFloat) - by_channel(mean_C);
    const at::Tensor grad_sum_C = grads_BCHW.sum(kAllButChannels);
    const at::Tensor dot_C = (grads_BCHW * centred_BCHW).sum(kAllButChannels) * inverse_C;

    const at::Tensor sums_K = at::cat({grad_sum_C, dot_C}).to(at::kDouble);
    c10::static_intrusive_pointer_cast<KeptSum>(context->saved_data["sum"].toCapsule())
        ->sum(sums_K);
    const at::Tensor means_K =
        sums_K.div(context->saved_data["num_values"].toDouble()).to(at::kFloat);
    const int64_t num_channels = gamma_C.numel();
    const at::Tensor grad_mean_C = means_K.narrow(0, 0, num_channels);
    const at::Tensor dot_mean_C = means_K.narrow(0, num_channels, num_channels);
    const at::Tensor input_grads_BCHW =
        ((grads_BCHW - by_channel(grad_mean_C))
             .sub_(centred_BCHW.mul_(by_channel(dot_mean_C * inverse_C))))
            .mul_(by_channel(gamma_C * inverse_C));
    return {input_grads_BCHW.to(inputs_BCHW.scalar_type()), dot_C, grad_sum_C, {}, {}, {}, {}, {}};
  }
};

}  // namespace

GlobalStatistics global_statistics(const at::Tensor& inputs_BCHW, const SumOverRanks& sum) {
  const at::NoGradGuard no_grad;
  const int64_t num_channels = inputs_BCHW.size(1);
  const auto num_samples = static_cast<double>(inputs_BCHW.size(0));
  const at::Tensor sums_K =
      at::zeros({1 + 2 * num_channels}, inputs_BCHW.options().dtype(at::kDouble));
  const at::Tensor means_C = sums_K.narrow(0, 1, num_channels);
  const at::Tensor squares_C = sums_K.narrow(0, 1 + num_channels, num_channels);
  // A rank without samples adds zeros: it still takes part in the collective.
  if (num_samples > 0) {
    const auto [variance_C, mean_C] =
        at::var_mean(inputs_BCHW.to(at::kFloat), kAllButChannels, /*correction=*/0);
    sums_K.narrow(0, 0, 1).fill_(num_samples);
    means_C.copy_(mean_C).mul_(num_samples);
    squares_C.copy_(mean_C).square_().add_(variance_C).mul_(num_samples);
  }
  sum(sums_K);
  // item() waits for the device: the host needs the count for its branches.
  const auto total = sums_K[0].item<double>();
  if (total == 0) return {};
  const at::Tensor mean_C = means_C / total;
  // E[x²] - E[x]² may round below 0 in the last digit.
  return {total, mean_C, (squares_C / total).sub_(mean_C.square()).clamp_min_(0)};
}

at::Tensor normalise_globally(const at::Tensor& inputs_BCHW, const at::Tensor& gamma_C,
                              const at::Tensor& beta_C, const GlobalStatistics& global,
                              double num_values, double epsilon, const SumOverRanks& sum) {
  return Normalise::apply(inputs_BCHW, gamma_C, beta_C, global.mean_C.to(at::kFloat),
                          global.variance_C.to(at::kFloat), num_values, epsilon, sum);
}

}  // namespace lockstep::model
