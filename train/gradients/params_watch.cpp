// reached_ is atomic, since several autograd threads may set flags at the same time.
#include "train/gradients/params_watch.h"

#include <ATen/ops/ones.h>

namespace lockstep::train {

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

}  // namespace lockstep::train
