// Averages are dense tensors by parameter. A GPU or another type uses ATen's lerp.
#include "optim/ema.h"

#include <algorithm>
#include <cmath>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/lerp.h>

#include "base/tensors/tensor_memory.h"
#include "optim/update_kernels.h"

namespace lockstep::optim {
namespace {

/// Updates float32 averages with own kernels: ATen's round the last elements of each thread
/// differently.
void follow_floats(const at::Tensor& weight, const at::Tensor& average, float share) {
  const float* const weights = weight.const_data_ptr<float>();
  float* const averages = average.mutable_data_ptr<float>();
  const auto follow_part = update_kernels(fastest_simd_path()).follow;
  at::parallel_for(0, average.numel(), kGrain, [=](int64_t begin, int64_t end) {
    follow_part(end - begin, weights + begin, share, averages + begin);
  });
}

void follow(const at::Tensor& weight, const at::Tensor& average, double share) {
  if (average.is_cpu() && average.scalar_type() == at::kFloat)
    follow_floats(weight, average, static_cast<float>(share));
  else
    average.lerp_(weight, share);
}

}  // namespace

Ema::Ema(std::optional<double> decay, ParamTable& params) : decay_(decay), params_(params) {
  if (!is_on()) return;
  const at::NoGradGuard no_grad;
  for (const Param& param : params_) {
    const at::Tensor weight = param.tensor.detach();
    averages_.push_back(
        // Large pages: every update streams through the whole average.
        empty_on_large_pages(weight.numel(), weight.options()).view(weight.sizes()).copy_(weight));
  }
}

double Ema::decay_at(double decay, int64_t n) {
  const auto updates = static_cast<double>(n);
  return std::min(decay, (1 + updates) / (10 + updates));
}

bool Ema::begin() {
  if (!is_on() || num_updates_ > 0) return false;
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < params_.size(); ++i) averages_[i].copy_(params_[i].tensor);
  return true;
}

void Ema::update() {
  if (!is_on()) return;
  const at::NoGradGuard no_grad;
  const double share = 1 - decay_at(*decay_, ++num_updates_);
  for (size_t i = 0; i < params_.size(); ++i)
    follow(params_[i].tensor.detach(), averages_[i], share);
}

at::Tensor Ema::of(int64_t param) const {
  return is_on() ? averages_.at(static_cast<size_t>(param)) : at::Tensor();
}

ParamTable Ema::params() const {
  ParamTable table;
  for (size_t i = 0; i < averages_.size(); ++i) {
    table.push_back(params_[i]);
    table.back().tensor = averages_[i];
  }
  return table;
}

StateList Ema::state() {
  StateList list;
  if (!is_on()) return list;
  list.push_back({.key = "_lockstep/ema/num_updates",
                  .tensor = view_of(&num_updates_),
                  .value_if_missing = 0.0});
  for (size_t i = 0; i < params_.size(); ++i)
    list.push_back({.key = "ema/" + slashed(params_[i].name),
                    .tensor = averages_[i],
                    .value_if_missing = 0.0,
                    .steady = true});
  return list;
}

EmaInModel::EmaInModel(Ema* ema) : ema_(ema != nullptr && ema->is_on() ? ema : nullptr) {
  if (ema_ == nullptr) return;
  for (size_t i = 0; i < ema_->params_.size(); ++i) {
    at::Tensor& tensor = ema_->params_[i].tensor;
    weights_.push_back(tensor.detach());
    // Exchanges memory, so that nothing is copied; the destructor exchanges it back.
    tensor.set_data(ema_->averages_[i]);
  }
}

EmaInModel::~EmaInModel() {
  for (size_t i = 0; i < weights_.size(); ++i) ema_->params_[i].tensor.set_data(weights_[i]);
}

}  // namespace lockstep::optim
