#include "optim/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include "base/error.h"
#include "optim/adam.h"
#include "optim/param_arena.h"
#include "optim/sgd.h"

namespace lockstep::optim {
namespace {

std::vector<at::Tensor> zeros_beside(const std::vector<FlatBuffer>& buffers) {
  std::vector<at::Tensor> flat;
  for (const FlatBuffer& buffer : buffers) flat.push_back(at::zeros_like(buffer.values_E));
  return flat;
}

/// The values that stood beside `before`, beside `now`.
std::vector<at::Tensor> laid_out_anew(const std::vector<at::Tensor>& flat_before,
                                      const std::vector<FlatBuffer>& before,
                                      const std::vector<FlatBuffer>& now,
                                      const ParamTable& params) {
  std::vector<at::Tensor> old_by_param(params.size());
  for (size_t b = 0; b < before.size(); ++b)
    for (const FlatSlice& slice : before[b].slices)
      old_by_param[static_cast<size_t>(slice.param)] = view_of_slice(flat_before[b], slice, params);
  std::vector<at::Tensor> flat = zeros_beside(now);
  for (size_t b = 0; b < now.size(); ++b)
    for (const FlatSlice& slice : now[b].slices)
      view_of_slice(flat[b], slice, params).copy_(old_by_param[static_cast<size_t>(slice.param)]);
  return flat;
}

}  // namespace

OptimizerOptions read_optimizer_options(YamlFields in) {
  OptimizerOptions options;
  in.read_choice("type", &options.type, {"sgd", "momentum", "adam"},
                 "update rule, in TensorFlow's form");
  in.read("learning_rate", &options.learning_rate, more_than(0),
          "before the first step; a recipe may change it");
  read_learning_rate_decay(&in, &options.decay);
  if (options.type == "momentum") {
    in.read("momentum", &options.momentum, half_open(0, 1),
            "momentum: share of the last update that is kept");
    in.read("nesterov", &options.nesterov, "momentum: look ahead by one update");
  }
  if (options.type == "adam") {
    in.read("adam_beta1", &options.adam_beta1, half_open(0, 1), "adam: decay of the first moment");
    in.read("adam_beta2", &options.adam_beta2, half_open(0, 1), "adam: decay of the second moment");
    in.read("opt_epsilon", &options.opt_epsilon, more_than(0),
            "adam: added to the root, before bias correction as in TensorFlow");
  }
  in.read("weight_decay", &options.weight_decay, at_least(0),
          "L2 on weights, not on biases; a recipe may change it");
  in.done();
  return options;
}

StepRates initial_rates(const OptimizerOptions& options) {
  StepRates rates;
  for (GroupRates& group : rates) group.learning_rate = options.learning_rate;
  rates[kWeightGroup].weight_decay = options.weight_decay;
  return rates;
}

void Optimizer::add_slot(std::string name) {
  slots_.push_back({std::move(name), zeros_beside(buffers_)});
}

StateList Optimizer::state() {
  StateList list{{"optimizer/iterations", view_of(&num_updates_), nullptr}};
  for (const Slot& one : slots_) {
    for (size_t b = 0; b < buffers_.size(); ++b)
      for (const FlatSlice& slice : buffers_[b].slices)
        list.push_back(
            {fmt::format("optimizer/{}/{}", slashed(params_[static_cast<size_t>(slice.param)].name),
                         one.name),
             view_of_slice(one.flat[b], slice, params_), nullptr});
  }
  return list;
}

std::vector<at::Tensor> Optimizer::slots_of(int64_t param) {
  std::vector<at::Tensor> found;
  for (const Slot& one : slots_)
    for (size_t b = 0; b < buffers_.size(); ++b)
      for (const FlatSlice& slice : buffers_[b].slices)
        if (slice.param == param) found.push_back(view_of_slice(one.flat[b], slice, params_));
  return found;
}

void Optimizer::follow(const std::vector<FlatBuffer>& buffers_before) {
  const at::NoGradGuard no_grad;
  for (Slot& one : slots_) one.flat = laid_out_anew(one.flat, buffers_before, buffers_, params_);
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<FlatBuffer>& buffers,
                                          const ParamTable& params) {
  if (options.type == "adam") return std::make_unique<Adam>(options, buffers, params);
  check(options.type == "sgd" || options.type == "momentum",
        "the reader lets only known optimizers pass");
  return std::make_unique<Sgd>(options, buffers, params);
}

}  // namespace lockstep::optim
