#include "bench/peers/torch_updates.h"

#include <cmath>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace lockstep::bench {
namespace {

constexpr double kBeta1 = 0.9, kBeta2 = 0.999, kLionBeta2 = 0.99, kMomentum = 0.9;
constexpr double kRho = 0.95, kRmsDecay = 0.9, kInitial = 0.1;

std::vector<at::Tensor> filled_like(const std::vector<at::Tensor>& values, double first) {
  std::vector<at::Tensor> slots;
  for (const at::Tensor& one : values) slots.push_back(at::full_like(one, first));
  return slots;
}

double first_value(const std::string& type) {
  if (type == "rmsprop") return 1;
  return type == "adagrad" || type == "ftrl" ? kInitial : 0;
}

}  // namespace

TorchUpdates::TorchUpdates(std::string type, double learning_rate, std::vector<at::Tensor> values,
                           std::vector<at::Tensor> grads)
    : type_(std::move(type)),
      rate_(learning_rate),
      values_(std::move(values)),
      grads_(std::move(grads)),
      first_(filled_like(values_, first_value(type_))),
      second_(filled_like(values_, 0)) {
  for (size_t i = 0; i < values_.size(); ++i) counts_.push_back(at::zeros({}));
}

std::string TorchUpdates::form() const {
  if (type_ == "ftrl" || type_ == "lion") return "loop";
  return type_ == "adadelta" || type_ == "rmsprop" ? "foreach" : "fused";
}

void TorchUpdates::count() {
  const at::NoGradGuard no_grad;
  ++num_updates_;
  for (at::Tensor& one : counts_) one.fill_(static_cast<double>(num_updates_));
}

void TorchUpdates::step() {
  const at::NoGradGuard no_grad;
  if (type_ == "sgd")
    at::_fused_sgd_(values_, grads_, {}, 0, 0, rate_, 0, false, false, false);
  else if (type_ == "momentum")
    at::_fused_sgd_(values_, grads_, first_, 0, kMomentum, rate_, 0, false, false, false);
  else if (type_ == "adam")
    adam(1e-7 / std::sqrt(1 - std::pow(kBeta2, num_updates_)));
  else if (type_ == "adamw")
    adam(1e-8);
  else if (type_ == "adagrad")
    at::_fused_adagrad_(values_, grads_, first_, counts_, rate_, 0, 0, 0, false);
  else if (type_ == "adadelta")
    adadelta();
  else if (type_ == "rmsprop")
    rmsprop();
  for (size_t i = 0; form() == "loop" && i < values_.size(); ++i)
    type_ == "ftrl" ? ftrl(i) : lion(i);
}

void TorchUpdates::adam(double epsilon) {
  if (type_ == "adamw")
    at::_fused_adamw_(values_, grads_, first_, second_, {}, counts_, rate_, kBeta1, kBeta2, 0,
                      epsilon, false, false);
  else
    at::_fused_adam_(values_, grads_, first_, second_, {}, counts_, rate_, kBeta1, kBeta2, 0,
                     epsilon, false, false);
}

void TorchUpdates::adadelta() {
  constexpr double kEpsilon = 1e-8;
  at::_foreach_mul_(first_, kRho);
  at::_foreach_addcmul_(first_, grads_, grads_, 1 - kRho);
  std::vector<at::Tensor> roots = at::_foreach_add(first_, kEpsilon);
  at::_foreach_sqrt_(roots);
  std::vector<at::Tensor> deltas = at::_foreach_add(second_, kEpsilon);
  at::_foreach_sqrt_(deltas);
  at::_foreach_div_(deltas, roots);
  at::_foreach_mul_(deltas, grads_);
  at::_foreach_mul_(second_, kRho);
  at::_foreach_addcmul_(second_, deltas, deltas, 1 - kRho);
  at::_foreach_add_(values_, deltas, -rate_);
}

void TorchUpdates::rmsprop() {
  at::_foreach_mul_(first_, kRmsDecay);
  at::_foreach_addcmul_(first_, grads_, grads_, 1 - kRmsDecay);
  std::vector<at::Tensor> roots = at::_foreach_sqrt(first_);
  at::_foreach_add_(roots, 1e-10);
  at::_foreach_mul_(second_, kMomentum);
  at::_foreach_addcdiv_(second_, grads_, roots);
  at::_foreach_add_(values_, second_, -rate_);
}

void TorchUpdates::ftrl(size_t i) {
  at::Tensor &w = values_[i], &n = first_[i], &l = second_[i];
  const at::Tensor before = n.sqrt();
  n.addcmul_(grads_[i], grads_[i]);
  const at::Tensor now = n.sqrt();
  l.add_(grads_[i]).sub_((now - before).div_(rate_).mul_(w));
  w.copy_(l.neg().div_(now.div_(rate_)));
}

void TorchUpdates::lion(size_t i) {
  at::Tensor &w = values_[i], &m = first_[i];
  w.add_(m.mul(kBeta1).add_(grads_[i], 1 - kBeta1).sign_(), -rate_);
  m.mul_(kLionBeta2).add_(grads_[i], 1 - kLionBeta2);
}

}  // namespace lockstep::bench
