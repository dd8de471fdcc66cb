#include "train/loss/teacher.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/tensors/params.h"

// Options of the teacher, and its forward pass.
namespace lockstep::train {

TeacherOptions read_teacher_options(ConfigReader* in) {
  TeacherOptions options;
  in->read("distill_teacher", &options.from,
           "teacher of a recipe that distils: a checkpoint, a run's folder or a file as for "
           "checkpoint.warm_start_ckpt; self: a copy of the network when distillation begins; "
           "disable: distillation is left out");
  // Lists of keys contain the section's, as those of `model`.
  if (!in->lists_fields() && !in->has("teacher_model")) return options;
  ConfigReader section = in->section("teacher_model");
  section.require("type");
  options.model = model::read_model_options(section);
  if (in->lists_fields()) return options;
  const bool brings_weights =
      options.model->type == "python" || options.model->type == "torchscript";
  if (options.is_self() || options.is_disabled())
    in->fault("teacher_model",
              fmt::format("'train.teacher_model' has no effect with train.distill_teacher: {}: "
                          "remove one of them",
                          options.from));
  else if (options.from.empty() && !brings_weights)
    in->fault("teacher_model",
              fmt::format("'train.teacher_model' is {}, which begins with random weights: set "
                          "train.distill_teacher to its checkpoint",
                          options.model->type));
  return options;
}

Teacher::Teacher(std::unique_ptr<model::Model> network, at::Device device)
    : network_(std::move(network)) {
  for (Param& param : network_->params()) {
    param.tensor.set_requires_grad(false);
    if (!device.is_cpu()) param.tensor.set_data(param.tensor.to(device));
  }
  network_->move_buffers_to(device);
  network_->set_training(false);
}

at::Tensor Teacher::outputs(const ForwardArguments& inputs) {
  const at::NoGradGuard no_grad;
  return network_->forward_of(inputs);
}

void Teacher::copy(const model::Model& network) {
  const at::NoGradGuard no_grad;
  const auto copy_all = [](const auto& from, const auto& to) {
    check(from.size() == to.size(), "a copy has the same tensors");
    for (size_t i = 0; i < from.size(); ++i) to[i].tensor.detach().copy_(from[i].tensor);
  };
  copy_all(network.params(), network_->params());
  copy_all(network.buffers(), network_->buffers());
}

StateList Teacher::state() const {
  StateList all;
  const auto add = [&](const auto& row) {
    all.push_back({.key = "_lockstep/teacher/" + slashed(row.name), .tensor = row.tensor.detach()});
  };
  for (const Param& param : network_->params()) add(param);
  for (const model::Buffer& buffer : network_->buffers()) add(buffer);
  return all;
}

}  // namespace lockstep::train
