#include "model/batch_norm.h"

#include <algorithm>
#include <span>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"

namespace lockstep::model {
namespace {

using States = std::span<const std::unique_ptr<BatchNormState>>;

/// Number of means and variances [K] of these states.
int64_t num_sums(States states) {
  int64_t num = 0;
  for (const auto& state : states) num += 2 * state->moving_mean_C.numel();
  return num;
}

/// Calls visit(begin, end) for each longest run of neighbours among `count` that are alike.
template <typename AreAlike, typename Visit>
void for_runs(size_t count, const AreAlike& are_alike, const Visit& visit) {
  for (size_t begin = 0, end = 0; begin < count; begin = end) {
    while (end < count && are_alike(begin, end)) ++end;
    visit(begin, end);
  }
}

bool saw_equally_many(const BatchNormState& a, const BatchNormState& b) {
  return std::ranges::equal(a.seen, b.seen, {}, &SeenBatch::num_samples, &SeenBatch::num_samples);
}

/// Weighted sum over forward passes. All states must have seen equal numbers of samples.
at::Tensor sums_over_samples(States alike) {
  const BatchNormState& first = *alike.front();
  if (first.seen.empty())
    return at::zeros({num_sums(alike)}, first.moving_mean_C.options().dtype(at::kDouble));
  at::Tensor sums_K;
  // One concatenation per pass: few kernels, however many normalisations there are.
  for (size_t pass = 0; pass < first.seen.size(); ++pass) {
    std::vector<at::Tensor> parts;
    for (const auto& state : alike)
      parts.insert(parts.end(), {state->seen[pass].mean_C, state->seen[pass].variance_C});
    const at::Tensor values_K = at::cat(parts).to(at::kDouble);
    const double num_samples = first.seen[pass].num_samples;
    sums_K = sums_K.defined() ? sums_K.add_(values_K, num_samples) : values_K * num_samples;
  }
  return sums_K;
}

double num_samples_of(const BatchNormState& state) {
  double sum = 0;
  for (const SeenBatch& batch : state.seen) sum += batch.num_samples;
  return sum;
}

/// Moves statistics by 1 - kKept towards the new values. Computes in float64 and rounds once.
void move_towards(const at::Tensor& goals_K, States states) {
  std::vector<at::Tensor> moving, num_batches;
  std::vector<int64_t> sizes;
  for (const auto& state : states) {
    moving.insert(moving.end(), {state->moving_mean_C, state->moving_variance_C});
    sizes.insert(sizes.end(), 2, state->moving_mean_C.numel());
    num_batches.push_back(state->num_batches);
  }
  const at::Tensor before_K = at::cat(moving).to(at::kDouble);
  const at::Tensor after_K =
      before_K.add(goals_K - before_K, 1 - BatchNormTable::kKept).to(at::kFloat);
  // One kernel for all tensors, instead of one per tensor.
  at::_foreach_copy_(moving, after_K.split_with_sizes(sizes));
  at::_foreach_add_(num_batches, 1);
}

}  // namespace

BatchNormState& BatchNormTable::add(int64_t num_channels) {
  states_.push_back(
      std::make_unique<BatchNormState>(BatchNormState{.moving_mean_C = at::zeros({num_channels}),
                                                      .moving_variance_C = at::ones({num_channels}),
                                                      .num_batches = at::zeros({}, at::kLong),
                                                      .seen = {}}));
  return *states_.back();
}

void BatchNormTable::move_to(at::Device device) {
  for (const auto& state : states_) {
    for (at::Tensor* tensor :
         {&state->moving_mean_C, &state->moving_variance_C, &state->num_batches})
      // set_data keeps the tensor's identity: layers and the buffer list refer to it.
      tensor->set_data(tensor->to(device));
    check(state->seen.empty(), "the model moves before its first forward pass");
  }
}

SeenStatistics BatchNormTable::take_seen() {
  const at::NoGradGuard no_grad;
  SeenStatistics seen;
  std::vector<at::Tensor> sums;
  for_runs(
      states_.size(),
      [&](size_t a, size_t b) { return saw_equally_many(*states_[a], *states_[b]); },
      [&](size_t begin, size_t end) {
        sums.push_back(sums_over_samples(States(states_).subspan(begin, end - begin)));
      });
  // A model without batch normalisation takes part in the sum over ranks with an empty tensor.
  if (sums.empty()) sums.push_back(at::zeros({0}, at::kDouble));
  seen.sums_K = sums.size() == 1 ? sums.front() : at::cat(sums);
  for (const auto& state : states_) {
    seen.num_samples_N.push_back(num_samples_of(*state));
    state->seen.clear();
  }
  return seen;
}

void BatchNormTable::update(const SeenStatistics& seen) {
  const at::NoGradGuard no_grad;
  const std::vector<double>& num_samples_N = seen.num_samples_N;
  check(num_samples_N.size() == states_.size(), "statistics of this model");
  int64_t begin_K = 0;
  for_runs(
      states_.size(), [&](size_t a, size_t b) { return num_samples_N[a] == num_samples_N[b]; },
      [&](size_t begin, size_t end) {
        const States states = States(states_).subspan(begin, end - begin);
        const at::Tensor sums_K = seen.sums_K.narrow(0, begin_K, num_sums(states));
        begin_K += sums_K.numel();
        if (num_samples_N[begin] != 0) move_towards(sums_K / num_samples_N[begin], states);
      });
}

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
