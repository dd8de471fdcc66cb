#pragma once

#include <memory>

#include <torch/csrc/jit/api/module.h>

#include "checkpoint/trackable.h"

/// TorchScript modules, as torch::jit::load gives them, in a Checkpoint. Separate from
/// checkpoint/torch_objects.h because this header costs seconds of compile time in each
/// source.
namespace lockstep::checkpoint {

/// Tracks parameters and buffers, including those of submodules, under their names with slashes:
/// fc1/weight. The module shares its tensors with its copies and is kept alive.
std::shared_ptr<Trackable> track_script_module(torch::jit::Module module);

inline std::shared_ptr<Trackable> make_trackable(ForTracking, const torch::jit::Module& module) {
  return track_script_module(module);
}

}  // namespace lockstep::checkpoint
