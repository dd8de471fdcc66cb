// sync.error_feedback in whole runs: ranks stay equal, and a run that goes on has the bits of an
// unbroken one.
#include <algorithm>
#include <functional>
#include <map>
#include <string>

#include <ATen/ops/equal.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include "support/thread_world.h"
#include "tests/train/small_run.h"

namespace lockstep::train {
namespace error_feedback_test {

using tests::SmallRun;
using tests::SmallRunOptions;

constexpr int kSteps = 14, kBreak = 7;  // at the break masks stand and a layer is frozen

constexpr const char* kRecipe = R"(version: 1.0.0
modifiers:
  - !GradualKSModifier {params: __ALL__, init_sparsity: 0.3, final_sparsity: 0.8, start_step: 1, end_step: 11, update_frequency_steps: 3}
  - !TrainableParamsModifier {params: [layers.1], trainable: false, start_step: 5, end_step: 9}
  - !SetParamModifier {params: [layers.2], val: 0.25, start_step: 3}
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 30}
)";

SmallRunOptions options_of(const std::function<void(SmallRunOptions*)>& change) {
  SmallRunOptions options;
  options.model = model::mlp({.layers = {3, 17, 9, 4}, .activation = "tanh"});
  options.global_batch = 8;
  options.num_samples = 32;
  options.optimizer = optim::default_options("adam");
  options.sync.comm_dtype = "bf16";
  options.sync.error_feedback = true;
  options.recipe = kRecipe;
  change(&options);
  return options;
}

const std::map<std::string, std::function<void(SmallRunOptions*)>> kSituations{
    {"dense", [](SmallRunOptions* options) { options->sync.sparse_allreduce = "never"; }},
    {"packed", [](SmallRunOptions* options) { options->sync.sparse_allreduce = "always"; }},
    {"divided", [](SmallRunOptions* options) { options->sync.shard_optimizer = true; }},
    {"float16", [](SmallRunOptions* options) { options->sync.comm_dtype = "fp16"; }},
    {"skips", [](SmallRunOptions* options) {
       options->train.precision = "fp16";
       options->train.loss_scale = {.initial_exponent = 20, .growth_steps = 3};
     }}};

StateList whole_state(SmallRun& run) {
  StateList all = run.state();
  for (const StateList& part : {run.recipe.state(), run.sampler.state(), run.reducer.state()})
    all.insert(all.end(), part.begin(), part.end());
  // Buffers that are laid out otherwise list their slots in another order.
  std::sort(all.begin(), all.end(), [](const auto& x, const auto& y) { return x.key < y.key; });
  return all;
}

/// What a restore does.
void copy_state(SmallRun& from, SmallRun* to) {
  const c10::NoGradGuard no_grad;
  const StateList source = whole_state(from), target = whole_state(*to);
  ASSERT_EQ(source.size(), target.size());
  for (size_t i = 0; i < source.size(); ++i) {
    ASSERT_EQ(source[i].key, target[i].key);
    if (source[i].text != nullptr) {
      *target[i].text = *source[i].text;
    } else if (const auto& held = source[i].held) {
      for (const ElementRange& range : *held)
        target[i]
            .tensor.view(-1)
            .slice(0, range.begin_E, range.end_E)
            .copy_(source[i].tensor.view(-1).slice(0, range.begin_E, range.end_E));
    } else {
      target[i].tensor.copy_(source[i].tensor);
    }
  }
  to->clock.step = from.clock.step;
  to->recipe.restored(to->control);
}

int64_t num_errors(SmallRun& run) {
  int64_t count = 0;
  for (const StateEntry& entry : run.reducer.state())
    if (entry.held) count += entry.tensor[run.control.rank()].count_nonzero().item<int64_t>();
  return count;
}

class ErrorFeedbackRuns : public ::testing::TestWithParam<std::string> {};

TEST_P(ErrorFeedbackRuns, GoOnWithTheBitsOfAnUnbrokenOne) {
  const SmallRunOptions options = options_of(kSituations.at(GetParam()));
  for (const int world_size : {1, 2, 4})
    tests::run_ranks(world_size, [&](dist::Communicator& comm) {
      SmallRun unbroken(comm, options), resumed(comm, options);
      int num_skipped = 0;
      while (unbroken.clock.step < kBreak) num_skipped += unbroken.step().skipped ? 1 : 0;
      EXPECT_EQ(num_skipped > 0, GetParam() == "skips");
      EXPECT_EQ(num_errors(unbroken) > 0, comm.world_size() > 1);
      copy_state(unbroken, &resumed);
      while (unbroken.clock.step < kSteps) (void)unbroken.step();
      while (resumed.clock.step < kSteps) (void)resumed.step();
      unbroken.require_equal_ranks();
      const StateList expected = whole_state(unbroken), found = whole_state(resumed);
      for (size_t i = 0; i < expected.size(); ++i) {
        if (!expected[i].tensor.defined()) continue;
        EXPECT_TRUE(at::equal(found[i].tensor, expected[i].tensor))
            << comm.world_size() << " ranks: " << expected[i].key;
      }
    });
}

INSTANTIATE_TEST_SUITE_P(Situations, ErrorFeedbackRuns,
                         ::testing::Values("dense", "packed", "divided", "float16", "skips"));

/// Ways in which gradients travel, with the errors that they leave.
TEST(ErrorFeedbackRuns, HaveTheSameBitsInEveryWay) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    const auto trained = [&](const char* situation) {
      auto run = std::make_unique<SmallRun>(comm, options_of(kSituations.at(situation)));
      while (run->clock.step < kSteps) (void)run->step();
      return run;
    };
    const auto dense = trained("dense");
    for (const char* other : {"packed", "divided"}) {
      const auto run = trained(other);
      for (size_t i = 0; i < run->model->params().size(); ++i)
        EXPECT_TRUE(at::equal(run->model->params()[i].tensor, dense->model->params()[i].tensor))
            << other << ": " << run->model->params()[i].name;
    }
  });
}

}  // namespace error_feedback_test
}  // namespace lockstep::train
