#pragma once

#include <memory>

#include <torch/csrc/jit/api/module.h>

#include "checkpoint/objects/trackable.h"

/// TorchScript modules in a Checkpoint, as torch::jit::load gives them. Apart from
/// checkpoint/objects/torch_objects.h because this header takes seconds in each source.
namespace lockstep::checkpoint {

/// Parameters and buffers, of submodules too, under their names with slashes: fc1/weight. The
/// module shares its tensors with its copies, and is kept.
std::shared_ptr<Trackable> track_script_module(torch::jit::Module module);

inline std::shared_ptr<Trackable> make_trackable(ForTracking, const torch::jit::Module& module) {
  return track_script_module(module);
}

}  // namespace lockstep::checkpoint
