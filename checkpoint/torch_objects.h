#pragma once

#include <memory>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

#include "checkpoint/trackable.h"

/// Modules and optimizers of LibTorch in a Checkpoint. Separate from
/// checkpoint/checkpoint.h because these headers cost seconds of compile time in each
/// source.
namespace lockstep::checkpoint {

/// Tracks parameters and buffers under their names with slashes: fc1/weight. Submodules that are
/// DeferredVariables are watched. The module is kept alive.
std::shared_ptr<Trackable> track_module(std::shared_ptr<torch::nn::Module> module);

/// Tracks an optimizer's state by parameter and slot: model/fc1/weight/exp_avg, where `model` is
/// the key of the object with the parameter. If no object has the parameter, its position in the
/// optimizer is used: param3/exp_avg. Supported are SGD, Adam, AdamW, RMSprop, Adagrad, LBFGS;
/// others throw Error(kConfig).
///
/// LibTorch creates slots at the first step. A restore creates those that the checkpoint has, for
/// the parameters that the optimizer has by then. After a later add_param_group() call
/// look_for_new().
///
/// If the checkpoint has slots of this optimizer, it replaces the optimizer's state: slots that the
/// checkpoint lacks are removed. Examples are a longer history of LBFGS, or moments of a parameter
/// that had none.
///
/// Rates and other options are settings of the program and are not saved. The optimizer must
/// outlive the Checkpoint.
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
