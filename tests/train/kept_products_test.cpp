// Layers that compute with kept elements alone, and before masks with products of few samples: what
// a run learns is what it learns with all elements, but for rounding, and no bit depends on how
// ranks work together.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "support/thread_world.h"
#include "tests/train/small_run.h"

namespace lockstep::train {
namespace kept_products_test {

using tests::SmallRun;
using tests::SmallRunOptions;

constexpr int kSteps = 8;
constexpr int64_t kWidth = 1030;  // enough elements for KeptWeight, and for products of few samples

constexpr const char* kPruned = R"(version: 1.0.0
modifiers:
  - !GradualKSModifier {params: __ALL__, init_sparsity: 0.3, final_sparsity: 0.95, start_step: 1, end_step: 6, update_frequency_steps: 2}
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 30}
)";

SmallRunOptions options_of(const std::string& optimizer) {
  SmallRunOptions options;
  options.model = model::mlp({.layers = {6, kWidth, kWidth, 4}, .activation = "tanh"});
  options.shape = {6};
  options.global_batch = 16;
  options.num_samples = 40;  // the last batch of an epoch is half of one
  options.optimizer = optim::default_options(optimizer);
  options.recipe = kPruned;
  return options;
}

using State = std::vector<std::pair<std::string, at::Tensor>>;
using Change = std::function<void(SmallRunOptions*)>;

/// Rank 0's state at the end, and how many weights a layer computed with kept elements alone.
State train(SmallRunOptions options, int world_size, const Change& change,
            bool follows_masks = true) {
  change(&options);
  State state;
  tests::run_ranks(world_size, [&](dist::Communicator& comm) {
    SmallRun run(comm, options);
    if (!follows_masks)
      for (const Param& param : run.model->params())
        if (param.follow_mask) const_cast<Param&>(param).follow_mask = nullptr;
    for (int step = 0; step < kSteps; ++step) EXPECT_FALSE(run.step().skipped);
    run.require_equal_ranks();
    const StateList all = run.state();
    if (comm.rank() == 0)
      for (const StateEntry& entry : all) state.emplace_back(entry.key, entry.tensor.clone());
  });
  return state;
}

void expect_same(const State& one, const State& other, const std::string& what, bool in_bits) {
  ASSERT_EQ(one.size(), other.size());
  for (size_t i = 0; i < one.size(); ++i) {
    const at::Tensor &a = one[i].second, &b = other[i].second;
    EXPECT_TRUE(in_bits ? at::equal(a, b) : at::allclose(a, b, 1e-3, 1e-4))
        << what << ": " << one[i].first;
  }
}

bool are_equal(const State& one, const State& other) {
  for (size_t i = 0; i < one.size(); ++i)
    if (!at::equal(one[i].second, other[i].second)) return false;
  return true;
}

const Change kNothing = [](SmallRunOptions*) {};

class KeptProducts : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, KeptProducts, ::testing::Values("momentum", "adamw"),
                         [](const auto& test) { return test.param; });

TEST_P(KeptProducts, ARunLearnsWhatItLearnsWithAllElements) {
  const SmallRunOptions options = options_of(GetParam());
  const State kept = train(options, 2, kNothing), all = train(options, 2, kNothing, false);
  expect_same(kept, all, "kept beside all", /*in_bits=*/false);
  EXPECT_FALSE(are_equal(kept, all)) << "nothing was computed with kept elements alone";
}

TEST_P(KeptProducts, HowRanksWorkTogetherChangesNoBit) {
  const SmallRunOptions options = options_of(GetParam());
  const State plain = train(options, 2, [](SmallRunOptions* each) {
    each->sync.sparse_allreduce = "never";
    each->sync.overlap = "false";
  });
  const std::vector<std::pair<std::string, Change>> changes{
      {"packed", [](SmallRunOptions* each) { each->sync.sparse_allreduce = "always"; }},
      {"small buckets", [](SmallRunOptions* each) { each->sync.bucket_bytes = 90'000; }},
      {"clipped far above", [](SmallRunOptions* each) { each->optimizer.clip.norm = 1e9; }},
      {"divided", [](SmallRunOptions* each) { each->sync.shard_optimizer = true; }},
      {"divided and packed",
       [](SmallRunOptions* each) {
         each->sync.shard_optimizer = true;
         each->sync.sparse_allreduce = "always";
       }},
      {"one copy of the weights", [](SmallRunOptions* each) { each->shares_weights = true; }}};
  for (const auto& [name, change] : changes)
    expect_same(train(options, 2, change), plain, name, /*in_bits=*/true);
}

TEST_P(KeptProducts, ElasticWorldsHaveTheSameBits) {
  SmallRunOptions options = options_of(GetParam());
  options.elastic = true;
  const State alone = train(options, 1, kNothing);
  for (const int num_ranks : {2, 4})
    expect_same(train(options, num_ranks, kNothing), alone, std::to_string(num_ranks) + " ranks",
                /*in_bits=*/true);
}

}  // namespace kept_products_test
}  // namespace lockstep::train
