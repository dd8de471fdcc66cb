// sync.outer_optimizer: nesterov: the outer step behind a mean of local steps.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/thread_world.h"
#include "tests/train/small_run.h"

namespace lockstep::train {
namespace outer_steps_test {

using tests::SmallRun;
using tests::SmallRunOptions;

constexpr optim::OuterOptions kOuter{.learning_rate = 0.7, .momentum = 0.9};

SmallRunOptions outer_steps(int64_t sync_every, const std::string& optimizer = "adam") {
  SmallRunOptions options;
  options.model = model::mlp({.layers = {3, 17, 4}, .activation = "tanh"});
  options.num_samples = 400;
  options.optimizer = optim::default_options(optimizer);
  options.optimizer.learning_rate = 0.05;
  options.sync.sync_replicas = false;
  options.sync.sync_every = sync_every;
  options.outer = kOuter;
  return options;
}

std::vector<at::Tensor> weights_of(const SmallRun& run) {
  std::vector<at::Tensor> weights;
  for (const Param& param : run.model->params()) weights.push_back(param.tensor.detach().clone());
  return weights;
}

/// Each round from the weights of the outer step before it, written with tensors. What the ranks'
/// mean would be comes from a run without outer steps, which gets these weights before each round.
TEST(OuterSteps, AreNesterovOverTheDistanceToTheMean) {
  for (const int world_size : {1, 2, 4})
    tests::run_ranks(world_size, [](dist::Communicator& comm) {
      SmallRunOptions plain = outer_steps(3, "sgd");
      plain.outer.reset();
      SmallRun ours(comm, outer_steps(3, "sgd")), means(comm, plain);
      std::vector<at::Tensor> expected = weights_of(ours), momentum;
      for (const at::Tensor& weight : expected) momentum.push_back(at::zeros_like(weight));
      for (int round = 0; round < 6; ++round) {
        for (int step = 0; step < 3; ++step) (void)ours.step(), (void)means.step();
        ours.require_equal_ranks();
        for (size_t i = 0; i < expected.size(); ++i) {
          const at::Tensor weight = means.model->params()[i].tensor.detach();
          const at::Tensor grad = expected[i] - weight;
          momentum[i] = kOuter.momentum * momentum[i] + grad;
          expected[i] = expected[i] - kOuter.learning_rate * (grad + kOuter.momentum * momentum[i]);
          EXPECT_TRUE(at::allclose(ours.model->params()[i].tensor, expected[i], 1e-5, 1e-6));
          weight.copy_(ours.model->params()[i].tensor);
        }
      }
    });
}

/// Masks grow from step 3 to 18 and a layer is frozen from 6 to 12: pruned weights and their outer
/// momentum are 0 at each mean, and frozen weights stay.
TEST(OuterSteps, KeepMasksAndFrozenWeights) {
  SmallRunOptions options = outer_steps(4, "momentum");
  options.recipe = R"(version: 1.0.0
modifiers:
  - !GradualKSModifier {params: [layers.0.weight], init_sparsity: 0.2, final_sparsity: 0.8, start_step: 3, end_step: 18, update_frequency_steps: 5}
  - !TrainableParamsModifier {params: [layers.1.weight], trainable: false, start_step: 6, end_step: 12}
)";
  tests::run_ranks(2, [&](dist::Communicator& comm) {
    SmallRun run(comm, options);
    const auto frozen = [&] { return run.model->params()[2].tensor.detach().clone(); };
    at::Tensor at_freeze;

    for (int64_t step = 1; step <= 24; ++step) {
      if (!run.step().ranks_agree) continue;
      run.require_equal_ranks();
      if (step == 8) at_freeze = frozen();
      if (step == 12) {
        EXPECT_TRUE(at::equal(at_freeze, frozen()));
      }
      for (const recal::ParamSparsity& layer : run.recipe.measure())
        EXPECT_EQ(layer.num_zeros, layer.num_pruned) << layer.name << " " << step;
      if (step <= 18) continue;
      for (const recal::Mask& mask : run.recipe.masks().all())
        EXPECT_EQ(run.outer.momentum_of(mask.param).eq(0).sum().item<int64_t>(), mask.num_pruned);
    }
    EXPECT_GT(run.recipe.sparsity(), 0.3);
    EXPECT_FALSE(at::equal(at_freeze, frozen()));
  });
}

/// Also where a round has ended early, before a change of masks.
TEST(OuterSteps, GoOnFromASave) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    SmallRun unbroken(comm, outer_steps(4)), resumed(comm, outer_steps(4));
    for (int step = 0; step < 12; ++step) (void)unbroken.step();
    const StateList from = unbroken.state(), to = resumed.state();
    ASSERT_EQ(from.size(), to.size());
    for (size_t i = 0; i < from.size(); ++i) to[i].tensor.copy_(from[i].tensor);
    resumed.clock.step = 12;
    resumed.sampler.set_position(unbroken.sampler.position());
    for (int step = 0; step < 8; ++step) (void)unbroken.step(), (void)resumed.step();
    const StateList one = unbroken.state(), other = resumed.state();
    for (size_t i = 0; i < one.size(); ++i)
      EXPECT_TRUE(at::equal(one[i].tensor, other[i].tensor)) << one[i].key;
  });
}

/// No rank has learnt: the weights stay, whatever the momentum.
TEST(OuterSteps, ARoundWithoutUpdatesMovesNothing) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    SmallRunOptions options = outer_steps(2);
    options.train.max_nonfinite_steps = 100;
    SmallRun run(comm, options);
    for (int step = 0; step < 4; ++step) (void)run.step();
    const std::vector<at::Tensor> before = weights_of(run);
    for (int step = 0; step < 2; ++step) {
      run.flat_params.buffers()[0].values_E[0].fill_(std::nan(""));
      (void)run.step();
    }
    EXPECT_TRUE(at::equal(run.model->params()[1].tensor, before[1]));
  });
}

}  // namespace outer_steps_test
}  // namespace lockstep::train
