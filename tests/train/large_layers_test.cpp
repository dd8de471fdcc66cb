// Layers whose weight gradients are made in blocks of rows, and leave before they are whole: no bit
// of a run depends on it.
#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "support/thread_world.h"
#include "tests/dist/spy_communicator.h"
#include "tests/train/small_run.h"

namespace lockstep::train {
namespace large_layers_test {

using tests::SmallRun;
using tests::SmallRunOptions;

constexpr int64_t kWidth = 1100;                // 1.2 M weights: several blocks
constexpr int64_t kBytesOfABucket = 300 << 10;  // of which the gradient has 16

SmallRunOptions large_layers() {
  SmallRunOptions options;
  options.model = model::mlp({.layers = {6, kWidth, kWidth, 4}, .activation = "tanh"});
  options.shape = {6};
  options.global_batch = 20;
  options.num_samples = 60;
  options.optimizer = optim::default_options("momentum");
  options.sync = {.bucket_bytes = kBytesOfABucket, .overlap = "true"};
  return options;
}

using State = std::vector<std::pair<std::string, at::Tensor>>;

State train(const SmallRunOptions& options, int num_ranks) {
  State state;
  tests::run_ranks(num_ranks, [&](dist::Communicator& comm) {
    SmallRun run(comm, options);
    for (int step = 0; step < 4; ++step) EXPECT_FALSE(run.step().skipped);
    run.require_equal_ranks();
    const StateList all = run.state();
    if (comm.rank() == 0)
      for (const StateEntry& entry : all) state.emplace_back(entry.key, entry.tensor.clone());
  });
  return state;
}

/// A way to train.
struct Way {
  std::string name;
  std::function<void(SmallRunOptions*)> choose;
};

class LargeLayers : public ::testing::TestWithParam<Way> {};

TEST_P(LargeLayers, OverlapChangesNoBit) {
  SmallRunOptions options = large_layers();
  GetParam().choose(&options);
  const State beside = train(options, 2);
  options.sync.overlap = "false";
  const State behind = train(options, 2);
  ASSERT_EQ(beside.size(), behind.size());
  for (size_t i = 0; i < beside.size(); ++i)
    EXPECT_TRUE(at::equal(beside[i].second, behind[i].second)) << beside[i].first;
}

constexpr const char* kHalfPruned = R"(version: 1.0.0
modifiers:
  - !GradualKSModifier {params: __ALL__, init_sparsity: 0.5, final_sparsity: 0.5, start_step: 0, end_step: 9, update_frequency_steps: 3}
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 30}
)";

INSTANTIATE_TEST_SUITE_P(
    Ways, LargeLayers,
    ::testing::Values(
        Way{"Dense", [](SmallRunOptions*) {}},
        Way{"ManySamples", [](SmallRunOptions* each) { each->global_batch = 40; }},
        Way{"MicroBatches", [](SmallRunOptions* each) { each->train.replicas_to_aggregate = 2; }},
        Way{"Divided", [](SmallRunOptions* each) { each->sync.shard_optimizer = true; }},
        Way{"Clipped", [](SmallRunOptions* each) { each->optimizer.clip.norm = 0.01; }},
        Way{"RoundedMessages", [](SmallRunOptions* each) { each->sync.comm_dtype = "bf16"; }},
        Way{"PackedMessages",
            [](SmallRunOptions* each) {
              each->recipe = kHalfPruned;
              each->sync.sparse_allreduce = "always";
            }}),
    [](const auto& test) { return test.param.name; });

/// While a step's messages go, the reducer listens to the layers; each has one use.
TEST(LargeLayersOfATrainer, AreListenedTo) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    const std::unique_ptr<dist::Communicator> inner = comm.split(0, comm.rank());
    auto spy = std::make_unique<tests::SpyCommunicator>(*inner);
    tests::SpyCommunicator& seen = *spy;
    SmallRun run(comm, large_layers(), std::move(spy));
    std::atomic<int64_t> most_listened_to = 0;
    seen.before_reduction = [&](int) {
      const ParamTable& params = run.model->params();
      const int64_t now = std::count_if(params.begin(), params.end(), [](const Param& param) {
        return param.grad_in_place != nullptr && param.grad_in_place->on_written;
      });
      most_listened_to = std::max(most_listened_to.load(), now);
    };
    run.step();
    EXPECT_EQ(most_listened_to, 3);
  });
}

}  // namespace large_layers_test
}  // namespace lockstep::train
