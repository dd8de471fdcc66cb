#include "train/step/training_pass.h"

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/ones.h>

#include "base/error.h"
#include "base/trace.h"
#include "data/sampler.h"
#include "train/step/step_report.h"

namespace lockstep::train {

Autocast::Autocast(const std::string& precision, at::Device device)
    : is_on_(precision != "fp32"), device_type_(device.type()) {
  if (!is_on_) return;
  check(precision == "bf16" || precision == "fp16", "precision: fp32, bf16 or fp16");
  was_enabled_ = at::autocast::is_autocast_enabled(device_type_);
  dtype_before_ = at::autocast::get_autocast_dtype(device_type_);
  at::autocast::set_autocast_dtype(device_type_, precision == "bf16" ? at::kBFloat16 : at::kHalf);
  at::autocast::set_autocast_enabled(device_type_, true);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (!is_on_) return;
  // The cache holds converted copies of the weights, which will change.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_type_, was_enabled_);
  at::autocast::set_autocast_dtype(device_type_, dtype_before_);
}

// reached_ is atomic, since several autograd threads may set flags at the same time.

ParamsWatch::ParamsWatch(const ParamTable& params)
    : params_(params),
      reached_(std::make_unique<std::atomic<bool>[]>(params.size())),
      was_named_(params.size(), false) {
  follow();
}

void ParamsWatch::follow() {
  // Old hooks first: a parameter must not have two.
  hooks_.reset();
  hooks_ = std::make_unique<dist::GradientHooks>(
      params_, [this](int64_t param) { reached_[static_cast<size_t>(param)] = true; });
}

void ParamsWatch::begin_step() {
  // Untrained parameters count as reached, so that only trained ones can be missing.
  for (size_t i = 0; i < params_.size(); ++i) reached_[i] = !params_[i].tensor.requires_grad();
}

void ParamsWatch::take_all_as_reached() {
  for (size_t i = 0; i < params_.size(); ++i) reached_[i] = true;
}

void ParamsWatch::before_forward() {
  versions_.clear();
  // Every in-place operation raises a tensor's version.
  for (const Param& param : params_) versions_.push_back(param.tensor._version());
}

void ParamsWatch::after_forward() {
  for (size_t i = 0; i < params_.size() && !written_; ++i)
    if (params_[i].tensor._version() != versions_[i]) written_ = i;
}

int64_t ParamsWatch::num_missing() const {
  int64_t num_missing = 0;
  for (size_t i = 0; i < params_.size(); ++i)
    if (!reached_[i]) ++num_missing;
  return num_missing;
}

at::Tensor ParamsWatch::reached_P() const {
  const at::Tensor reached_P = at::ones({static_cast<int64_t>(params_.size())}, at::kLong);
  for (size_t i = 0; i < params_.size(); ++i)
    if (!reached_[i]) reached_P.mutable_data_ptr<int64_t>()[i] = 0;
  return reached_P;
}

std::string ParamsWatch::note_write() {
  is_noted_ = true;
  return written_ ? params_[*written_].name : "";
}

std::vector<std::string> ParamsWatch::new_names(const std::vector<int64_t>& params) {
  std::vector<std::string> names;
  for (const int64_t param : params) {
    const auto i = static_cast<size_t>(param);
    if (!was_named_[i]) names.push_back(params_[i].name);
    was_named_[i] = true;
  }
  return names;
}

namespace {

void add(const at::Tensor& loss, HostWaits waits, LossSum* sum) {
  if (waits == HostWaits::kForLosses)
    sum->here += loss.item<double>();
  else
    sum->there = sum->there.defined() ? sum->there + loss.detach() : loss.detach().to(at::kDouble);
}

}  // namespace

LossSum TrainingPass::run(const PassInputs& inputs,
                          const std::optional<dist::StepRequests>& completes, HostWaits waits,
                          metrics::PhaseSeconds* phases) {
  parts_.flat_params.zero_grads();
  LossSum loss_sum;
  const int64_t num_parts = parts_.num_micro_batches;
  for (int64_t part = 0; part < num_parts; ++part) {
    const bool is_last = completes && part + 1 == num_parts;  // its gradients complete the update
    const data::Shard share = data::shard_of(inputs.targets_BY.size(0), part, num_parts);
    // Without samples a rank skips the pass, unless other ranks wait for its sums in forward.
    if (share.size() == 0 && !parts_.statistics.needs_every_rank()) {
      if (is_last) parts_.reducer.prepare_for_backward(*completes);
      continue;
    }
    Stopwatch watch;
    const at::Tensor loss = sum_of_losses(inputs.inputs_BX.narrow(0, share.begin, share.size()),
                                          inputs.targets_BY.narrow(0, share.begin, share.size()),
                                          inputs.first_sample + share.begin);
    phases->forward += watch.lap();
    if (is_last) parts_.reducer.prepare_for_backward(*completes);
    if (waits != HostWaits::kForNothing) parts_.reducer.settle();
    phases->allreduce += watch.lap();
    backward(loss, inputs.weight);
    add(loss, waits, &loss_sum);
    phases->backward += watch.lap();
  }
  // After all micro-batches: gradients that no layer wrote are still marked as stale.
  parts_.flat_params.zero_unwritten_grads();
  if (parts_.model.runs_user_code()) parts_.flat_params.require_views();
  return loss_sum;
}

void TrainingPass::backward(const at::Tensor& loss, const at::Tensor& weight) {
  const trace::Span span("backward");
  // A branch may leave out all trained parameters: then backward reaches nothing, as in
  // torch.optim.
  if (!loss.requires_grad() && parts_.model.runs_user_code()) return parts_.model.after_backward();
  // Before backward: it tells which gradients have a single source and may leave early.
  parts_.reducer.follow_graph(loss);
  try {
    loss.backward(weight);
  } catch (const std::exception&) {
    parts_.model.after_backward();  // throws the network's own error if its code raised one
    throw;
  }
  parts_.model.after_backward();
}

at::Tensor TrainingPass::sum_of_losses(const at::Tensor& inputs_BX, const at::Tensor& targets_BY,
                                       int64_t first_sample) {
  const trace::Span span("forward");
  parts_.model.begin_forward({.step = parts_.clock.step, .first_sample = first_sample});
  at::Tensor outputs_BO, own_loss;
  if (parts_.watch != nullptr) parts_.watch->before_forward();
  {
    const Autocast autocast(parts_.precision, inputs_BX.device());
    if (parts_.loss.is_own())
      own_loss = parts_.model.own_loss(inputs_BX, targets_BY);
    else
      outputs_BO = parts_.model.forward(inputs_BX);
  }
  if (parts_.watch != nullptr) parts_.watch->after_forward();
  if (parts_.tensors != nullptr) parts_.tensors->add_outputs(outputs_BO);
  if (outputs_BO.defined()) return parts_.loss.sum(outputs_BO, targets_BY);
  // own_loss() is a mean over the samples.
  return own_loss.to(at::kFloat).mul(static_cast<double>(inputs_BX.size(0)));
}

}  // namespace lockstep::train
