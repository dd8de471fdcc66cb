// sync.shard_optimizer: each rank updates its share, and nothing else is different.
#include <atomic>
#include <map>

#include <gtest/gtest.h>

#include "base/error.h"
#include "support/thread_world.h"
#include "tests/train/small_run.h"

namespace lockstep::train {
namespace divided_optimizer_test {

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

SmallRunOptions options_of(const std::string& optimizer, bool divided, const std::string& packed) {
  SmallRunOptions options;
  options.model = model::mlp({.layers = {3, 17, 9, 4}, .activation = "tanh"});
  options.optimizer = optim::default_options(optimizer);
  options.optimizer.weight_decay = 0.01;
  options.optimizer.clip.norm = 0.5;
  options.sync.shard_optimizer = divided;
  options.sync.sparse_allreduce = packed;
  options.recipe = kRecipe;
  return options;
}

struct Trained {
  std::map<std::string, at::Tensor> state;
  int64_t slot_bytes = 0;  ///< of all ranks together, after the last step
};

Trained train(const SmallRunOptions& options, int world_size) {
  Trained trained;
  std::atomic<int64_t> slot_bytes = 0;
  tests::run_ranks(world_size, [&](dist::Communicator& comm) {
    SmallRun run(comm, options);
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_FALSE(run.step().skipped);
      if (step % 5 == 0) run.require_equal_ranks();
    }
    slot_bytes += run.optimizer->slot_bytes();
    for (const StateEntry& entry : run.state())
      if (comm.rank() == 0) trained.state[entry.key] = entry.tensor.clone();
  });
  trained.slot_bytes = slot_bytes;
  return trained;
}

TEST(DividedOptimizer, TrainsTheSameBits) {
  for (const std::string& optimizer : optim::optimizer_types())
    for (const char* packed : {"never", "always"})
      for (const int world_size : {2, 3, 4}) {
        if (world_size == 3 && optimizer != "adam") continue;
        const Trained whole = train(options_of(optimizer, false, packed), world_size);
        const Trained divided = train(options_of(optimizer, true, packed), world_size);
        ASSERT_EQ(whole.state.size(), divided.state.size());
        for (const auto& [name, tensor] : whole.state)
          EXPECT_TRUE(at::equal(tensor, divided.state.at(name)))
              << optimizer << ", packed " << packed << ", " << world_size << " ranks: " << name;
      }
}

TEST(DividedOptimizer, MomentsThatAreNotDividedAreComparedAsTheyAre) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    SmallRun run(comm, options_of("momentum", false, "never"));
    run.step();
    EXPECT_TRUE(run.optimizer->sharded_state().empty());
    run.require_equal_ranks();
    if (comm.rank() == 1) run.optimizer->slots_of(0).front().view(-1)[0] += 1;
    EXPECT_THROW(run.require_equal_ranks(), Error);
  });
}

TEST(DividedOptimizer, AllRanksTogetherKeepTheMomentsOfOne) {
  for (const int world_size : {2, 4}) {
    const int64_t alone = train(options_of("adam", false, "never"), 1).slot_bytes;
    EXPECT_EQ(train(options_of("adam", true, "never"), world_size).slot_bytes, alone);
    EXPECT_EQ(train(options_of("adam", false, "never"), world_size).slot_bytes, world_size * alone);
  }
}

}  // namespace divided_optimizer_test
}  // namespace lockstep::train
