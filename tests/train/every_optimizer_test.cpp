// Properties of every update rule while a recipe prunes and freezes.
#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include <ATen/ops/equal.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include "support/thread_world.h"
#include "tests/train/small_run.h"

namespace lockstep::train {
namespace every_optimizer_test {

using tests::SmallRun;
using tests::SmallRunOptions;

constexpr int64_t kSteps = 12, kBreak = 6;  // at the break masks stand and a layer is frozen

constexpr const char* kRecipe = R"(version: 1.0.0
modifiers:
  - !GradualKSModifier {params: __ALL__, init_sparsity: 0.3, final_sparsity: 0.8, start_step: 1, end_step: 10, update_frequency_steps: 3}
  - !TrainableParamsModifier {params: [layers.1], trainable: false, start_step: 5, end_step: 8}
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 30}
)";

SmallRunOptions options_of(const std::string& optimizer) {
  SmallRunOptions options;
  options.model = model::mlp({.layers = {3, 17, 9, 4}, .activation = "tanh"});
  options.num_samples = 40;
  options.global_batch = 16;
  options.elastic = true;
  options.optimizer = optim::default_options(optimizer.substr(0, optimizer.find('_')));
  if (optimizer.ends_with("_int8")) options.optimizer.state_dtype = "int8";
  if (optimizer != "ftrl") options.optimizer.weight_decay = 0.01;
  options.optimizer.clip.norm = 0.5;
  options.sync.sparse_allreduce = "always";
  options.recipe = kRecipe;
  return options;
}

struct Saved {
  int64_t step = 0;
  std::vector<std::pair<std::string, at::Tensor>> state;  ///< empty: a run that begins
};

StateList saved_state(SmallRun& run) {
  StateList all = run.state();
  for (const StateList& part : {run.recipe.state(), run.sampler.state()})
    all.insert(all.end(), part.begin(), part.end());
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
  return all;
}

void restore(const Saved& saved, SmallRun* run) {
  if (saved.state.empty()) return;
  const c10::NoGradGuard no_grad;
  const StateList state = saved_state(*run);
  ASSERT_EQ(state.size(), saved.state.size());
  for (size_t i = 0; i < state.size(); ++i) {
    ASSERT_EQ(state[i].key, saved.state[i].first);
    state[i].tensor.copy_(saved.state[i].second);
  }
  run->clock.step = saved.step;
  run->recipe.restored(run->control);
}

/// Goes on from `saved` until `end` steps are done.
Saved train(const SmallRunOptions& options, int world_size, const Saved& saved, int64_t end,
            std::atomic<int>* num_early = nullptr) {
  Saved after{.step = end};
  tests::run_ranks(world_size, [&](dist::Communicator& comm) {
    SmallRun run(comm, options);
    restore(saved, &run);
    while (run.clock.step < end) {
      const StepReport report = run.step();
      EXPECT_FALSE(report.skipped);
      if (num_early != nullptr && report.totals.late_wait_s > 0) ++*num_early;
    }
    for (const StateEntry& entry : saved_state(run))
      if (comm.rank() == 0) after.state.emplace_back(entry.key, entry.tensor.clone());
  });
  return after;
}

void expect_same_bits(const Saved& one, const Saved& other, const char* what) {
  ASSERT_EQ(one.state.size(), other.state.size());
  for (size_t i = 0; i < one.state.size(); ++i)
    EXPECT_TRUE(at::equal(one.state[i].second, other.state[i].second))
        << what << ": " << one.state[i].first;
}

std::vector<std::string> optimizers() {
  std::vector<std::string> all = optim::optimizer_types();
  for (const char* type : {"momentum", "adam", "adamw", "muon"})
    all.push_back(type + std::string("_int8"));
  return all;
}

class EveryOptimizer : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, EveryOptimizer, ::testing::ValuesIn(optimizers()),
                         [](const auto& test) { return test.param; });

/// One rank; two; four, among which the optimizer is divided; those, and then one.
TEST_P(EveryOptimizer, ElasticWorldsHaveTheSameBits) {
  const SmallRunOptions options = options_of(GetParam());
  SmallRunOptions divided = options;
  divided.sync.shard_optimizer = true;
  const Saved alone = train(options, 1, {}, kSteps);
  expect_same_bits(train(options, 2, {}, kSteps), alone, "two ranks");
  expect_same_bits(train(divided, 4, {}, kSteps), alone, "four ranks, divided");
  expect_same_bits(train(options, 1, train(divided, 4, {}, kBreak), kSteps), alone,
                   "four ranks and then one");
}

/// Updates that begin while the last buckets are sent, compared with those that wait for all.
TEST_P(EveryOptimizer, UpdatesByBucketHaveTheSameBits) {
  SmallRunOptions by_bucket = options_of(GetParam());
  by_bucket.elastic = false;
  by_bucket.optimizer.clip = {};
  SmallRunOptions at_once = by_bucket;
  at_once.sync.overlap = "false";
  for (const int num_ranks : {2, 4}) {
    std::atomic<int> num_early = 0;
    const Saved early = train(by_bucket, num_ranks, {}, kSteps, &num_early);
    EXPECT_GT(num_early, 0);
    expect_same_bits(early, train(at_once, num_ranks, {}, kSteps, &num_early), "by bucket");
  }
}

/// Weights and all slots, packed and whole, are checked after every step.
TEST_P(EveryOptimizer, WhatIsPrunedStaysZero) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    SmallRun run(comm, options_of(GetParam()));
    int64_t num_pruned = 0;
    while (run.clock.step < kSteps) {
      (void)run.step();
      for (const recal::Mask& mask : run.recipe.masks().all()) {
        std::vector<at::Tensor> values = run.optimizer->slots_of(mask.param);
        values.push_back(run.model->params()[static_cast<size_t>(mask.param)].tensor.detach());
        for (const at::Tensor& value : values) {
          at::Tensor rest = value.clone();
          run.recipe.zero_pruned(mask.param, rest);
          EXPECT_TRUE(at::equal(rest, value)) << mask.name << " after step " << run.clock.step;
        }
        num_pruned += mask.num_pruned;
      }
    }
    EXPECT_GT(num_pruned, 0);
  });
}

}  // namespace every_optimizer_test
}  // namespace lockstep::train
