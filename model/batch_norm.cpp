#include "model/batch_norm.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "base/error.h"
#include "model/sync_batch_norm.h"

namespace lockstep::model {
namespace {

/// Unbiased variance: x n / (n - 1). The variance of a single value is 0.
at::Tensor unbiased(const at::Tensor& variance_C, double num_values) {
  return num_values > 1 ? variance_C * (num_values / (num_values - 1)) : variance_C;
}

double num_values_of(double num_samples, const at::Tensor& inputs_BCHW) {
  return num_samples * static_cast<double>(inputs_BCHW.size(2) * inputs_BCHW.size(3));
}

/// Tensors [C] for one call of ATen's normalisation.
struct NormTensors {
  at::Tensor gamma_C, beta_C, mean_C, variance_C;
};

/// Normalises with ATen. In training, momentum 1 makes mean_C and variance_C the batch's own
/// (unbiased): ATen's moving average is not used. On a GPU, PyTorch may choose cuDNN, but never for
/// a single value per channel.
at::Tensor normalise(const at::Tensor& inputs_BCHW, const NormTensors& by, bool training,
                     bool is_single = false) {
  const double momentum = training ? 1 : 0;
  if (inputs_BCHW.is_cuda() && !is_single)
    return at::batch_norm(inputs_BCHW, by.gamma_C, by.beta_C, by.mean_C, by.variance_C, training,
                          momentum, BatchNormTable::kEpsilon,
                          at::globalContext().userEnabledCuDNN());
  return std::get<0>(at::native_batch_norm(inputs_BCHW, by.gamma_C, by.beta_C, by.mean_C,
                                           by.variance_C, training, momentum,
                                           BatchNormTable::kEpsilon));
}

/// Returns two zero tensors [C] in one allocation, each with the alignment of its own allocation.
std::pair<at::Tensor, at::Tensor> two_zeros(int64_t num_channels, at::Device device) {
  // In floats: 256 bytes, the alignment that CUDA guarantees.
  constexpr int64_t kAligned = 64;
  const int64_t second = (num_channels + kAligned - 1) / kAligned * kAligned;
  const at::Tensor both = at::zeros({second + num_channels}, at::TensorOptions(device));
  return {both.narrow(0, 0, num_channels), both.narrow(0, second, num_channels)};
}

}  // namespace

BatchNorm::BatchNorm(const std::string& name, int64_t num_channels, LayerTable* table,
                     NormNames names)
    : name_(name),
      names_(names),
      norms_(table->norms),
      state_(table->norms.add(num_channels)),
      gamma_C_(at::ones({num_channels}).set_requires_grad(true)),
      beta_C_(at::zeros({num_channels}).set_requires_grad(true)) {
  check(!table->layers.empty(), "batch normalisation follows a layer");
  table->layers.back().has_batch_norm = true;
  const auto suffixes = norm_suffixes(names);
  table->params.push_back({.name = name + suffixes[0], .tensor = gamma_C_});
  table->params.push_back({.name = name + suffixes[1], .tensor = beta_C_});
  table->buffers.push_back({name + suffixes[2], state_.moving_mean_C});
  table->buffers.push_back({name + suffixes[3], state_.moving_variance_C});
  table->buffers.push_back({name + suffixes[4], state_.num_batches});
}

at::Tensor BatchNorm::operator()(const at::Tensor& inputs_BCHW) const {
  if (goes_by_moving_statistics()) return by_moving_statistics(inputs_BCHW);
  if (norms_.sum_over_ranks()) return by_samples_of_all_ranks(inputs_BCHW);
  return by_own_samples(inputs_BCHW);
}

bool BatchNorm::goes_by_moving_statistics() const {
  const bool is_trained = gamma_C_.requires_grad() || beta_C_.requires_grad();
  return !norms_.is_training() || norms_.is_frozen() ||
         (norms_.is_frozen_with_params() && !is_trained);
}

NetworkLayer BatchNorm::description() const {
  return {.kind = LayerKind::kBatchNorm,
          .name = name_,
          .epsilon = BatchNormTable::kEpsilon,
          .norm_names = names_};
}

at::Tensor BatchNorm::by_moving_statistics(const at::Tensor& inputs_BCHW) const {
  if (inputs_BCHW.numel() == 0)  // ATen's backward would divide by zero values
    return inputs_BCHW * gamma_C_.view({1, -1, 1, 1}) + beta_C_.view({1, -1, 1, 1});
  return normalise(inputs_BCHW, {gamma_C_, beta_C_, state_.moving_mean_C, state_.moving_variance_C},
                   /*training=*/false);
}

at::Tensor BatchNorm::by_own_samples(const at::Tensor& inputs_BCHW) const {
  const auto num_samples = static_cast<double>(inputs_BCHW.size(0));
  // A rank without samples still runs forward: its parameters need a gradient, of zeros.
  if (num_samples == 0) return by_moving_statistics(inputs_BCHW);
  const auto [mean_C, variance_C] = two_zeros(gamma_C_.numel(), state_.moving_mean_C.device());
  const bool is_single = num_values_of(num_samples, inputs_BCHW) == 1;  // ATen would divide by 0
  at::Tensor outputs_BCHW = normalise(inputs_BCHW, {gamma_C_, beta_C_, mean_C, variance_C},
                                      /*training=*/true, is_single);
  keep({num_samples, mean_C, is_single ? at::zeros_like(mean_C) : variance_C});
  return outputs_BCHW;
}

at::Tensor BatchNorm::by_samples_of_all_ranks(const at::Tensor& inputs_BCHW) const {
  const GlobalStatistics global = global_statistics(inputs_BCHW, norms_.sum_over_ranks());
  // No rank has samples: nothing to normalise by, and nothing to keep.
  if (global.num_samples == 0) return by_moving_statistics(inputs_BCHW);
  const double num_values = num_values_of(global.num_samples, inputs_BCHW);
  keep({global.num_samples, global.mean_C, unbiased(global.variance_C, num_values)});
  return normalise_globally(inputs_BCHW, gamma_C_, beta_C_, global, num_values,
                            BatchNormTable::kEpsilon, norms_.sum_over_ranks());
}

}  // namespace lockstep::model
