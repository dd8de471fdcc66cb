// sync.share_weights: one copy of the weights for all ranks, and no bit is another.
#include <map>
#include <string>

#include <gtest/gtest.h>

#include <ATen/ops/equal.h>

#include "support/thread_world.h"
#include "tests/train/small_run.h"

namespace lockstep::train {
namespace shared_weights_test {

using tests::SmallRun;
using tests::SmallRunOptions;

constexpr int kSteps = 12;

constexpr const char* kPruned = R"(version: 1.0.0
modifiers:
  - !GradualKSModifier {params: __ALL__, init_sparsity: 0.2, final_sparsity: 0.8, start_step: 2, end_step: 9, update_frequency_steps: 3}
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 30}
)";

/// Frozen, thawed, frozen otherwise; a value set in between.
constexpr const char* kFrozen = R"(version: 1.0.0
modifiers:
  - !TrainableParamsModifier {params: [layers.1], trainable: false, start_step: 3, end_step: 6}
  - !TrainableParamsModifier {params: [layers.0], trainable: false, start_step: 7, end_step: 10}
  - !SetParamModifier {params: [layers.2], val: 0.25, start_step: 5}
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 30}
)";

using Change = void (*)(SmallRunOptions*);

/// What a run may be, by name.
const std::map<std::string, Change> kSituations{
    {"plain", [](SmallRunOptions*) {}},
    {"pruned", [](SmallRunOptions* options) { options->recipe = kPruned; }},
    {"frozen", [](SmallRunOptions* options) { options->recipe = kFrozen; }},
    {"sharded",
     [](SmallRunOptions* options) {
       options->sync.shard_optimizer = true;
       options->recipe = kPruned;
     }},
    {"clipped",
     [](SmallRunOptions* options) {
       options->optimizer.clip = {.value = 0.2, .norm = 0.3};
       options->recipe = kPruned;
     }},
    {"fp16",
     [](SmallRunOptions* options) {
       options->train.precision = "fp16";
       options->train.loss_scale = {.initial_exponent = 20, .growth_steps = 3};
     }},
    {"elastic", [](SmallRunOptions* options) { options->elastic = true; }},
    {"averaged", [](SmallRunOptions* options) { options->optimizer.ema_decay = 0.9; }}};

SmallRunOptions options_of(const std::string& optimizer, const std::string& situation) {
  SmallRunOptions options;
  options.model = model::mlp({.layers = {3, 17, 9, 4}, .activation = "tanh"});
  options.global_batch = 8;
  options.num_samples = 32;
  options.optimizer = optim::default_options(optimizer);
  options.optimizer.weight_decay = 0.01;
  kSituations.at(situation)(&options);
  return options;
}

struct Trained {
  std::map<std::string, at::Tensor> state;
  int num_skipped = 0;
};

Trained train(SmallRunOptions options, bool shared, int world_size) {
  options.shares_weights = shared;
  Trained trained;
  tests::run_ranks(world_size, [&](dist::Communicator& comm) {
    SmallRun run(comm, options);
    int num_skipped = 0;
    for (int step = 0; step < kSteps; ++step) num_skipped += run.step().skipped ? 1 : 0;
    run.require_equal_ranks();
    const StateList state = run.state();
    if (comm.rank() != 0) return;
    trained.num_skipped = num_skipped;
    for (const StateEntry& entry : state) trained.state[entry.key] = entry.tensor.clone();
  });
  return trained;
}

class SharedWeights : public ::testing::TestWithParam<std::string> {};

TEST_P(SharedWeights, TrainTheSameBits) {
  for (const auto& [situation, change] : kSituations)
    for (const int world_size : {1, 2, 4}) {
      const SmallRunOptions options = options_of(GetParam(), situation);
      const Trained own = train(options, false, world_size);
      const Trained shared = train(options, true, world_size);
      EXPECT_EQ(own.num_skipped, shared.num_skipped);
      EXPECT_EQ(own.num_skipped > 0, situation == "fp16");
      ASSERT_EQ(own.state.size(), shared.state.size());
      for (const auto& [name, tensor] : own.state)
        EXPECT_TRUE(at::equal(tensor, shared.state.at(name)))
            << situation << ", " << world_size << " ranks: " << name;
    }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, SharedWeights, ::testing::ValuesIn(optim::optimizer_types()));

TEST(SharedWeights, AreInOneMemory) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    SmallRunOptions options = options_of("adam", "frozen");
    options.shares_weights = true;
    SmallRun run(comm, options);
    for (int step = 0; step < 8; ++step) {  // laid out anew on the way
      run.step();
      comm.barrier();
      const at::Tensor weight = run.model->params()[0].tensor.detach();
      if (comm.rank() == 1) weight.view(-1)[0] = 7.0F + static_cast<float>(step);
      comm.barrier();
      EXPECT_EQ(weight.view(-1)[0].item<float>(), 7.0F + static_cast<float>(step));
      comm.barrier();
    }
  });
}

}  // namespace shared_weights_test
}  // namespace lockstep::train
