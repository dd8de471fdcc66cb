// The C++ side of optimizer_oracle.py: an optimizer with gradients that it is sent, or a loss.
//
//   optimizer_driver SECTION EXTENTS STEPS_PER_EPOCH STEPS
//   optimizer_driver loss LABEL_SMOOTHING SAMPLES CLASSES
//
// SECTION: `optimizer` of a run file; EXTENTS: sizes of the parameters p0, p1, ...: 300,12x5. Those
// of two dimensions are matrices for muon. Reads float32: the parameters' values, then the
// gradients of each step. Writes the rates of all steps, float64, then all values after each step.
// Loss: reads logits float32 [B, C] and classes int64 [B], writes the mean loss, float64.
#include <cstdio>
#include <sstream>
#include <string>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/yaml/yaml_document.h"
#include "optim/flat_params.h"
#include "optim/optimizer.h"
#include "recal/schedule/param_choices.h"
#include "train/loss/loss.h"

namespace {

using lockstep::ParamTable;

void read_tensor(const at::Tensor& values) {
  lockstep::check(std::fread(values.mutable_data_ptr(), values.element_size(), values.numel(),
                             stdin) == static_cast<size_t>(values.numel()),
                  "the oracle writes on");
}

void write_tensor(const at::Tensor& values) {
  const at::Tensor flat = values.detach().contiguous();
  lockstep::check(std::fwrite(flat.const_data_ptr(), flat.element_size(), flat.numel(), stdout) ==
                      static_cast<size_t>(flat.numel()),
                  "the oracle reads on");
}

lockstep::optim::OptimizerOptions options_of(const std::string& section) {
  lockstep::Diagnostics faults;
  const auto document = lockstep::YamlDocument::parse("test", section, &faults);
  const auto options = lockstep::optim::read_optimizer_options(
      lockstep::ConfigReader(document.root(), "optimizer", document, &faults));
  faults.throw_if_any("test");
  return options;
}

ParamTable read_params(const std::string& extents) {
  ParamTable params;
  std::istringstream in(extents);
  for (std::string extent; std::getline(in, extent, ',');) {
    const size_t cross = extent.find('x');
    at::Tensor values = at::empty({std::stoll(extent)});
    if (cross != std::string::npos)
      values = at::empty({std::stoll(extent), std::stoll(extent.substr(cross + 1))});
    read_tensor(values);
    params.push_back({.name = fmt::format("p{}", params.size()),
                      .tensor = values.clone().set_requires_grad(true),
                      .prunable = true,
                      .decayed = true,
                      .is_matrix = cross != std::string::npos});
  }
  return params;
}

void run_optimizer(const std::string& section, const std::string& extents, int64_t steps_per_epoch,
                   int64_t num_steps) {
  const at::NoGradGuard no_grad;
  const auto options = options_of(section);
  ParamTable params = read_params(extents);
  lockstep::recal::choose_multipliers(options.learning_rate_multipliers, &params);
  lockstep::optim::BufferPlan plan;
  for (size_t i = 0; i < params.size(); ++i) {
    if (plan.empty() || params[i].is_matrix || params[i - 1].is_matrix ||
        params[i].rate_multiplier != params[i - 1].rate_multiplier)
      plan.emplace_back();
    plan.back().push_back(static_cast<int64_t>(i));
  }
  lockstep::optim::FlatParams flat(params, plan, at::kCPU);
  const auto optimizer = lockstep::optim::make_optimizer(options, flat.buffers(), params);
  const at::Tensor rates_S = at::empty({num_steps}, at::kDouble);
  for (int64_t step = 0; step < num_steps; ++step)
    rates_S[step] = lockstep::optim::decayed_rate(options.decay, options.learning_rate, step,
                                                  steps_per_epoch, num_steps);
  write_tensor(rates_S);
  for (int64_t step = 0; step < num_steps; ++step) {
    for (const lockstep::FlatBuffer& buffer : flat.buffers()) read_tensor(buffer.grads_E);
    lockstep::optim::StepRates rates = lockstep::optim::initial_rates(options);
    for (auto& group : rates) group.learning_rate = rates_S[step].item<double>();
    rates[lockstep::kWeightGroup].weight_decay =
        lockstep::optim::weight_decay_at(options, step, num_steps);
    optimizer->step(rates);
    for (const lockstep::FlatBuffer& buffer : flat.buffers()) write_tensor(buffer.values_E);
  }
}

void run_loss(double label_smoothing, int64_t num_samples, int64_t num_classes) {
  const at::Tensor logits_BC = at::empty({num_samples, num_classes});
  const at::Tensor targets_B = at::empty({num_samples}, at::kLong);
  read_tensor(logits_BC);
  read_tensor(targets_B);
  lockstep::data::SampleSpec spec;
  spec.num_classes = num_classes;
  const lockstep::train::Loss loss("cross_entropy", {.label_smoothing = label_smoothing}, spec);
  write_tensor(loss.sum(logits_BC, targets_B).to(at::kDouble) / static_cast<double>(num_samples));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    lockstep::check(argc == 5, "four arguments");
    const std::string what = argv[1];
    if (what == "loss")
      run_loss(std::stod(argv[2]), std::stoll(argv[3]), std::stoll(argv[4]));
    else
      run_optimizer(what, argv[2], std::stoll(argv[3]), std::stoll(argv[4]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
