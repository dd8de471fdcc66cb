#pragma once

#include <memory>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "base/tensors/forward_arguments.h"
#include "base/tensors/state_list.h"
#include "base/yaml/config_reader.h"
#include "model/networks/model_table.h"

/// Teacher of a run that distils: a second network that is not trained.
namespace lockstep::train {

/// Keys `distill_teacher` and `teacher_model` of section `train`.
struct TeacherOptions {
  /// Checkpoint or weights file, self, or disable. Empty: none.
  std::string from;
  std::optional<model::ModelOptions> model;  ///< nullopt: the network that is trained

  bool is_disabled() const { return from == "disable"; }
  /// True if the teacher is a copy of the network at the step at which distillation begins.
  bool is_self() const { return from == "self"; }
  bool is_given() const { return !is_disabled() && (!from.empty() || model); }
  /// True if the teacher's weights are read from `from`.
  bool is_loaded() const { return is_given() && !is_self() && !from.empty(); }
};

/// Reads the keys. A built-in network without a checkpoint would be a random teacher: a fault.
TeacherOptions read_teacher_options(ConfigReader* in);

/// Network in evaluation mode, without gradients. Its memory is its own, and no step changes it.
class Teacher {
 public:
  /// Moves the network to the device and freezes it.
  Teacher(std::unique_ptr<model::Model> network, at::Device device);

  /// Returns the outputs for a batch, float of any type. Throws Error(kConfig) if the network
  /// refuses the inputs.
  at::Tensor outputs(const ForwardArguments& inputs);
  /// Copies weights and buffers of a network of the same kind.
  void copy(const model::Model& network);

  model::Model& network() { return *network_; }
  /// Checkpoint state `_lockstep/teacher/...`, live memory: for a teacher that is a copy.
  StateList state() const;

 private:
  std::unique_ptr<model::Model> network_;
};

}  // namespace lockstep::train
