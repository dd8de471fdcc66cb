#pragma once

#include <memory>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

#include "checkpoint/objects/trackable.h"

/// LibTorch's modules and optimizers in a Checkpoint. Apart from checkpoint/objects/checkpoint.h
/// because these headers take seconds in each source.
namespace lockstep::checkpoint {

/// Parameters and buffers under their names, with slashes: fc1/weight. Submodules that are
/// DeferredVariables are watched. Keeps the module.
std::shared_ptr<Trackable> track_module(std::shared_ptr<torch::nn::Module> module);

/// State by parameter and slot: model/fc1/weight/exp_avg, where `model` is the key of the object
/// that holds the parameter; for one that no object of the Checkpoint holds, param3/exp_avg after
/// its place in the optimizer. SGD, Adam, AdamW, RMSprop, Adagrad, LBFGS; others throw
/// Error(kConfig). Slots appear in LibTorch with the first step; a restore makes those that the
/// save holds, for parameters that the optimizer has by then (add_param_group() later:
/// look_for_new()). Where the save holds slots of this optimizer, an optimizer that has stepped
/// since loses those that the save lacks: a longer history of LBFGS, the moments of a parameter
/// that had none. Rates and other options are settings of the program and are not saved. The
/// optimizer must outlive the Checkpoint.
std::shared_ptr<Trackable> track_optimizer(torch::optim::Optimizer& optimizer);

inline std::shared_ptr<Trackable> make_trackable(ForTracking, torch::optim::Optimizer& optimizer) {
  return track_optimizer(optimizer);
}
template <std::derived_from<torch::nn::Module> M>
std::shared_ptr<Trackable> make_trackable(ForTracking, const std::shared_ptr<M>& module) {
  return track_module(module);
}
template <typename M>
std::shared_ptr<Trackable> make_trackable(ForTracking, const torch::nn::ModuleHolder<M>& holder) {
  return track_module(holder.ptr());
}

}  // namespace lockstep::checkpoint
