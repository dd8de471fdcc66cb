// optimizer.ema_decay: the moving average of the weights, in the step that training makes.
#include <map>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/thread_world.h"
#include "tests/train/small_run.h"

namespace lockstep::train {
namespace averages_test {

using tests::SmallRun;
using tests::SmallRunOptions;

constexpr int kSteps = 24;

/// Prunes in steps 3 to 18, freezes a layer in steps 6 to 12.
constexpr const char* kRecipe = R"(version: 1.0.0
modifiers:
  - !GradualKSModifier {params: __ALL__, init_sparsity: 0.2, final_sparsity: 0.8, start_step: 3, end_step: 18, update_frequency_steps: 5}
  - !TrainableParamsModifier {params: [layers.1], trainable: false, start_step: 6, end_step: 12}
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 30}
)";

SmallRunOptions options_of(const std::string& optimizer) {
  SmallRunOptions options;
  options.model = model::mlp({.layers = {3, 17, 9, 4}, .activation = "tanh"});
  options.optimizer.type = optimizer;
  options.optimizer.ema_decay = 0.9;
  options.recipe = kRecipe;
  return options;
}

std::map<std::string, at::Tensor> averages_of(const SmallRunOptions& options, int world_size) {
  std::map<std::string, at::Tensor> averages;
  tests::run_ranks(world_size, [&](dist::Communicator& comm) {
    SmallRun run(comm, options);
    for (int step = 0; step < kSteps; ++step) (void)run.step();
    run.require_equal_ranks();
    for (const StateEntry& entry : run.ema.state())
      if (comm.rank() == 0) averages[entry.key] = entry.tensor.clone();
  });
  return averages;
}

void expect_same_bits(const std::map<std::string, at::Tensor>& one,
                      const std::map<std::string, at::Tensor>& other) {
  ASSERT_EQ(one.size(), other.size());
  for (const auto& [key, tensor] : one) EXPECT_TRUE(at::equal(tensor, other.at(key))) << key;
}

TEST(Averages, ADividedOptimizerHasTheSame) {
  for (const int world_size : {2, 3, 4}) {
    SmallRunOptions divided = options_of("adam");
    divided.sync.shard_optimizer = true;
    expect_same_bits(averages_of(options_of("adam"), world_size), averages_of(divided, world_size));
  }
}

TEST(Averages, ElasticWorldsHaveTheSame) {
  SmallRunOptions options = options_of("momentum");
  options.elastic = true;
  const auto alone = averages_of(options, 1);
  for (const int world_size : {2, 4}) expect_same_bits(averages_of(options, world_size), alone);
}

/// The average after every step is that of the previous weights, and 0 where they are pruned.
TEST(Averages, FollowFrozenAndPrunedWeights) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    SmallRun run(comm, options_of("adam"));
    std::vector<at::Tensor> expected;
    for (const Param& param : run.model->params())
      expected.push_back(param.tensor.detach().clone());
    int64_t num_pruned = 0;
    for (int64_t step = 1; step <= kSteps; ++step) {
      (void)run.step();
      const double decay = optim::Ema::decay_at(0.9, step);
      for (size_t i = 0; i < expected.size(); ++i) {
        const auto param = static_cast<int64_t>(i);
        const at::Tensor weight = run.model->params()[i].tensor.detach();
        expected[i].mul_(decay).add_(weight, 1 - decay);
        if (run.recipe.masks().covers(param)) {
          expected[i].masked_fill_(weight == 0, 0);
          num_pruned += run.recipe.masks().of(param).num_pruned;
          EXPECT_TRUE(at::equal(run.ema.of(param) == 0, weight == 0)) << step;
        }
        EXPECT_TRUE(at::allclose(run.ema.of(param), expected[i], 1e-5, 1e-6)) << step;
      }
    }
    EXPECT_GT(num_pruned, 0);
  });
}

TEST(Averages, ASkippedStepMovesNone) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    SmallRun run(comm, options_of("sgd"));
    (void)run.step();
    const at::Tensor before = run.ema.of(0).clone();
    const at::Tensor bias = run.model->params()[1].tensor.detach();
    const at::Tensor good = bias.clone();
    if (comm.rank() == 1) bias[0].fill_(std::nan(""));
    EXPECT_TRUE(run.step().skipped);
    EXPECT_TRUE(at::equal(run.ema.of(0), before));
    bias.copy_(good);
    EXPECT_FALSE(run.step().skipped);
    EXPECT_FALSE(at::equal(run.ema.of(0), before));
  });
}

}  // namespace averages_test
}  // namespace lockstep::train
