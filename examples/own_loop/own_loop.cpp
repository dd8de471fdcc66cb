// A recipe in a training loop of one's own: torch::nn, torch::optim and the manager, one process.
//   build/default/examples/own_loop/own_loop examples/own_loop/recipe.yaml

#include <torch/torch.h>

#include <cstdio>

#include <fmt/format.h>

#include "dist/communicator.h"
#include "recal/scheduled_modifier_manager.h"

namespace {

constexpr int64_t kSamples = 512, kBatch = 64, kInputs = 20, kStepsPerEpoch = kSamples / kBatch;

lockstep::ParamTable table_of(const torch::nn::Module& model) {
  lockstep::ParamTable params;
  for (const auto& named : model.named_parameters())
    params.push_back({.name = named.key(),
                      .tensor = named.value(),
                      .prunable = named.value().dim() >= 2,
                      .decayed = named.value().dim() >= 2});
  return params;
}

void train(const std::string& recipe_file) {
  torch::manual_seed(17);
  torch::nn::Sequential model(torch::nn::Linear(kInputs, 64), torch::nn::Tanh(),
                              torch::nn::Linear(64, 1));
  const torch::Tensor inputs = torch::randn({kSamples, kInputs});
  const torch::Tensor targets = inputs.narrow(1, 0, 3).sum(1, /*keepdim=*/true).tanh();

  auto manager = lockstep::recal::ScheduledModifierManager::from_yaml(recipe_file);
  lockstep::Diagnostics faults;
  manager.attach(table_of(*model), {.steps_per_epoch = kStepsPerEpoch, .base_learning_rate = 0.1},
                 &faults);
  faults.throw_if_any("own_loop");
  torch::optim::SGD optimizer(model->parameters(), manager.learning_rate_at(0));

  lockstep::dist::SelfCommunicator alone;  // or an MPI or NCCL communicator of all ranks
  const int64_t num_steps = *manager.max_epochs() * kStepsPerEpoch;
  for (int64_t step = 0; step < num_steps; ++step) {
    (void)manager.apply_due(step, alone);
    for (auto& group : optimizer.param_groups())
      group.options().set_lr(manager.learning_rate_at(step));
    const int64_t begin = (step % kStepsPerEpoch) * kBatch;
    optimizer.zero_grad();
    const torch::Tensor outputs = model->forward(inputs.narrow(0, begin, kBatch));
    const torch::Tensor loss = torch::mse_loss(outputs, targets.narrow(0, begin, kBatch));
    loss.backward();
    manager.mask_gradients();
    optimizer.step();
    manager.end_step(/*updated=*/true, alone);
    if ((step + 1) % kStepsPerEpoch == 0)
      fmt::print("epoch {}: loss {:.4f}, learning rate {:.3g}, sparsity {:.4f}\n",
                 (step + 1) / kStepsPerEpoch, loss.item<double>(), manager.learning_rate_at(step),
                 manager.covered_sparsity());
  }
  manager.finalize(num_steps, alone);
  for (const auto& one : manager.measure())
    fmt::print("{}: {} of {} weights are zero\n", one.name, one.num_zeros, one.num_weights);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: own_loop RECIPE.yaml\n", stderr);
    return 64;
  }
  try {
    train(argv[1]);
    return 0;
  } catch (const lockstep::Error& fault) {
    std::fprintf(stderr, "%s\n", fault.what());
    return static_cast<int>(fault.code());
  }
}
