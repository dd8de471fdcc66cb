// The moving average of the weights (optimizer.ema_decay), one thread:
// bench/averages
//
// 20 M float32 weights in 32 tensors, timed in turn with LibTorch doing the same (one
// _foreach_lerp_, as PyTorch's AveragedModel makes it), and with one pass over the same memory
// (add_: both are read, one is written). Then what it adds to an update.
#include <cstdlib>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "bench/programs/pairs.h"
#include "optim/flat_params.h"
#include "optim/optimizer.h"

namespace lockstep::bench {
namespace {

constexpr int64_t kNumTensors = 32, kNumEach = 625'000;
constexpr double kDecay = 0.999;

struct Weights {
  Weights() {
    optim::BufferPlan plan{{}};
    for (int64_t i = 0; i < kNumTensors; ++i) {
      params.push_back({fmt::format("layer{}.weight", i),
                        at::randn({kNumEach}).set_requires_grad(true), true, true});
      plan[0].push_back(i);
    }
    flat_params = std::make_unique<optim::FlatParams>(params, plan, at::kCPU);
    for (FlatBuffer& buffer : flat_params->buffers()) buffer.grads_E.normal_();
    for (const Param& param : params) tensors.push_back(param.tensor.detach());
  }

  ParamTable params;
  std::unique_ptr<optim::FlatParams> flat_params;
  std::vector<at::Tensor> tensors;
};

void time_average(Weights& weights) {
  optim::Ema ema(kDecay, weights.params);
  ema.begin();
  std::vector<at::Tensor> theirs;
  for (const at::Tensor& tensor : weights.tensors) theirs.push_back(tensor.clone());
  Contest contest{"EMA, 20 M in 32", "_foreach_lerp_", 1.0};
  contest.ours = [&] { ema.update(); };
  contest.theirs = [&] { at::_foreach_lerp_(theirs, weights.tensors, 1 - kDecay); };
  contest.num_pairs = 15;
  print(contest, run(contest));
  contest.peer = "one pass, add_";
  contest.goal_ratio = 0.95;
  contest.theirs = [&] {
    for (size_t i = 0; i < theirs.size(); ++i) theirs[i].add_(weights.tensors[i]);
  };
  print(contest, run(contest));
}

void time_update(Weights& weights, const std::string& type) {
  const optim::OptimizerOptions options{.type = type, .learning_rate = 0.001};
  const auto optimizer =
      optim::make_optimizer(options, weights.flat_params->buffers(), weights.params);
  const optim::StepRates rates = optim::initial_rates(options);
  optim::Ema ema(kDecay, weights.params);
  ema.begin();
  Contest contest{fmt::format("{} with EMA", type), "without", std::nullopt};
  contest.ours = [&] {
    optimizer->step(rates);
    ema.update();
  };
  contest.theirs = [&] { optimizer->step(rates); };
  contest.num_pairs = 15;
  print(contest, run(contest));
}

void run_all() {
  at::set_num_threads(1);
  at::manual_seed(1);
  const at::NoGradGuard no_grad;
  Weights weights;
  time_average(weights);
  for (const std::string type : {"sgd", "momentum", "adam"}) time_update(weights, type);
}

}  // namespace
}  // namespace lockstep::bench

int main() { return lockstep::bench::exit_code_of(lockstep::bench::run_all); }
