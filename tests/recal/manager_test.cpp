#include <map>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include "base/error.h"
#include "base/random.h"
#include "dist/communicator.h"
#include "recal/masks/mask_table.h"
#include "recal/scheduled_modifier_manager.h"
#include "recipes.h"
#include "small_training.h"
#include "tests/support/thread_world.h"

namespace lockstep::recal {
namespace manager_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Manager, AppliesWhatIsDueBeforeEachStep) {
  dist::SelfCommunicator comm;
  Training run(short_run());
  std::map<int64_t, int64_t> zeros_after_step;  // where they change
  int64_t zeros = 0;
  for (int64_t step = 0; step < 24; ++step) {
    run.step(comm);
    EXPECT_DOUBLE_EQ(run.manager.learning_rate_at(step), step < 10 ? 0.1 : 0.05) << step;
    EXPECT_EQ(run.last.masks_changed, run.num_zeros(0) != zeros) << step;
    EXPECT_EQ(run.last.changed_params.size(), run.last.masks_changed ? 1U : 0U) << step;
    if (run.num_zeros(0) != zeros) zeros_after_step[step] = zeros = run.num_zeros(0);
  }
  // 0.1 + 0.7 (1 - (1 - k/4)^3) of 100 weights at steps 4, 7, 10, 13; 0.8 at 16
  EXPECT_THAT(zeros_after_step, ElementsAre(std::pair(4, 10), std::pair(7, 50), std::pair(10, 71),
                                            std::pair(13, 79), std::pair(16, 80)));
  EXPECT_EQ(run.num_zeros(1) + run.num_zeros(2), 0);
  EXPECT_DOUBLE_EQ(run.manager.covered_sparsity(), 0.8);
  EXPECT_DOUBLE_EQ(run.manager.sparsity(), 0.4);
}

TEST(Manager, PrunedWeightsNeverComeBack) {
  dist::SelfCommunicator comm;
  Training run(short_run());
  at::Tensor before = at::ones({10, 10}, at::kByte);
  for (int64_t step = 0; step < 24; ++step) {
    run.step(comm);
    const at::Tensor kept = kept_flags(run.manager.masks().of(0).kept_bits, {10, 10});
    EXPECT_FALSE(kept.gt(before).any().item<bool>()) << "revived at step " << step;
    EXPECT_TRUE(at::equal(run.params[0].tensor.ne(0), kept.ne(0))) << step;
    before = kept.clone();
  }
}

TEST(Manager, MeasuresTheWeights) {
  dist::SelfCommunicator comm;
  Training run(short_run());
  run.go_on_until(24, comm);
  run.params[2].tensor.detach()[0][0] = 0;  // by chance
  const std::vector<ParamSparsity> measured = run.manager.measure();
  ASSERT_EQ(measured.size(), 2U);
  EXPECT_EQ(measured[0].name, "a.weight");
  EXPECT_EQ(measured[0].num_weights, 100);
  EXPECT_EQ(measured[0].num_pruned, 80);
  EXPECT_EQ(measured[0].num_zeros, 80);
  EXPECT_EQ(measured[1].num_pruned, 0);
  EXPECT_EQ(measured[1].num_zeros, 1);
}

TEST(Manager, FinalizeAppliesAClosingSparsityAtTheEndOfTheRun) {
  dist::SelfCommunicator comm;
  Training run(
      recipe_of({"!GradualKSModifier {params: __ALL__, init_sparsity: 0.1, final_sparsity: 0.5, "
                 "start_epoch: 0, end_epoch: 2, update_frequency: 2, leave_enabled: false}"}));
  EXPECT_EQ(run.manager.total_steps(), 8);
  run.go_on_until(8, comm);
  EXPECT_EQ(run.num_zeros(0), 10);
  const AppliedActions applied = run.manager.apply_closing(8, comm);
  EXPECT_TRUE(applied.masks_changed);
  EXPECT_DOUBLE_EQ(run.manager.sparsity(), 0.5);  // nothing grows back any more
  EXPECT_EQ(run.num_zeros(0), 50);
  EXPECT_EQ(run.num_zeros(2), 50);
}

TEST(Manager, WithoutLeaveEnabledWeightsMayGrowBackAfterTheEnd) {
  dist::SelfCommunicator comm;
  Training run(
      recipe_of({"!GradualKSModifier {params: [a], init_sparsity: 0.1, final_sparsity: 0.5, "
                 "start_epoch: 0, end_epoch: 1, update_frequency: 1, leave_enabled: false}",
                 "!EpochRangeModifier {start_epoch: 0, end_epoch: 3}"}));
  run.go_on_until(4, comm);
  EXPECT_EQ(run.num_zeros(0), 10);
  const AppliedActions applied = run.manager.apply_due(4, comm);
  EXPECT_TRUE(applied.masks_changed);
  EXPECT_EQ(run.num_zeros(0), 50);  // set, then let go
  run.step(comm);
  EXPECT_EQ(run.num_zeros(0), 0);
  EXPECT_DOUBLE_EQ(run.manager.covered_sparsity(), 0);
}

TEST(Manager, AConstantModifierKeepsWhatAGradualOneLeft) {
  dist::SelfCommunicator comm;
  Training run(recipe_of(
      {"!GradualKSModifier {params: [a], init_sparsity: 0.1, final_sparsity: 0.5, start_epoch: 0, "
       "end_epoch: 1, update_frequency: 1, leave_enabled: false}",
       "!ConstantKSModifier {params: [a]}", "!EpochRangeModifier {start_epoch: 0, end_epoch: 3}"}));
  run.go_on_until(12, comm);
  EXPECT_EQ(run.num_zeros(0), 50);
}

TEST(Manager, AConstantModifierKeepsTheZerosOfAPrunedModel) {
  dist::SelfCommunicator comm;
  Training run(recipe_of({"!ConstantKSModifier {params: __ALL__}"}));
  run.params[0].tensor.detach().narrow(0, 3, 4).zero_();  // a warm start writes the weights after
                                                          // attach
  run.go_on_until(10, comm);
  EXPECT_EQ(run.num_zeros(0), 40);
  EXPECT_EQ(run.num_zeros(2), 0);
  EXPECT_EQ(run.params[0].tensor.narrow(0, 3, 4).count_nonzero().item<int64_t>(), 0);
}

TEST(Manager, ARunStoppedAtAnyStepGoesOnAsIfItHadNot) {
  dist::SelfCommunicator comm;
  for (const std::string& recipe :
       {short_run(),
        recipe_of({"!GradualKSModifier {params: [a], init_sparsity: 0.1, final_sparsity: 0.5, "
                   "start_epoch: 0.5, end_epoch: 3, update_frequency: 0.3, leave_enabled: false}",
                   "!ConstantKSModifier {params: __ALL__}",
                   "!SetLearningRateModifier {start_epoch: 2, learning_rate: 0.3}"})}) {
    Training unbroken(recipe);
    unbroken.go_on_until(24, comm);
    unbroken.manager.apply_closing(24, comm);
    for (int64_t stop = 0; stop <= 24; ++stop) {
      Training stopped(recipe);
      stopped.go_on_until(stop, comm);
      Training resumed(recipe);
      copy_state(&stopped, &resumed);
      resumed.manager.restored(comm);
      resumed.go_on_until(24, comm);
      resumed.manager.apply_closing(24, comm);
      expect_same(resumed, unbroken);
    }
  }
}

TEST(Manager, MasksWrittenFromOutsideAreEnforcedFromTheFirstStep) {
  dist::SelfCommunicator comm;
  Training stopped(short_run());
  stopped.go_on_until(18, comm);
  Training resumed(short_run());
  copy_state(&stopped, &resumed);
  resumed.step(comm);
  EXPECT_EQ(resumed.num_zeros(0), 80);
}

class ManagerOnRanks : public ::testing::TestWithParam<int> {};

TEST_P(ManagerOnRanks, EqualRanksStayEqual) {
  Training alone(short_run());
  dist::SelfCommunicator self;
  alone.go_on_until(24, self);
  tests::run_ranks(GetParam(), [&](dist::Communicator& comm) {
    Training run(short_run());
    run.go_on_until(24, comm);
    run.manager.apply_closing(24, comm);
    expect_same(run, alone);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, ManagerOnRanks, ::testing::Values(1, 2, 4));

/// The error that every rank must see, with its text on each rank.
std::vector<std::string> errors_on_ranks(
    int world_size, const std::function<void(Training&, dist::Communicator&)>& body) {
  std::vector<std::string> texts(static_cast<size_t>(world_size));
  tests::run_ranks(world_size, [&](dist::Communicator& comm) {
    Training run(short_run());
    try {
      body(run, comm);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kDisagree);
      EXPECT_TRUE(error.on_every_rank());
      texts[static_cast<size_t>(comm.rank())] = error.what();
    }
  });
  return texts;
}

TEST(ManagerOverRanks, ARankWithOtherWeightsIsCaughtAtTheNextMask) {
  const std::vector<std::string> texts =
      errors_on_ranks(4, [](Training& run, dist::Communicator& comm) {
        run.go_on_until(5, comm);
        // The smallest living weight of rank 2 becomes the largest.
        if (comm.rank() == 2) {
          const at::Tensor kept = run.params[0].tensor.detach().view(-1);
          const at::Tensor living = at::where(kept.eq(0), at::full({}, 1e9F), kept.abs());
          kept[living.argmin()] = 100;
        }
        run.go_on_until(7, comm);  // nothing is compared where no mask changes
        run.go_on_until(8, comm);
      });
  for (const std::string& text : texts) {
    EXPECT_EQ(text, texts[0]);
    EXPECT_THAT(text, HasSubstr("the new mask at step 7 of a.weight differs: rank 2 from ranks 0, "
                                "1, 3; first at item "));
    EXPECT_THAT(text, HasSubstr("rank 2: 1"));
    EXPECT_THAT(text, HasSubstr("ranks 0, 1, 3: 0"));
  }
}

TEST(ManagerOverRanks, ARankWhoseRestoredMaskDiffersIsCaught) {
  const std::vector<std::string> texts =
      errors_on_ranks(2, [](Training& run, dist::Communicator& comm) {
        if (comm.rank() == 1) run.manager.state()[0].tensor[2] = 0b01111111;  // 23
        run.manager.restored(comm);
      });
  for (const std::string& text : texts) {
    EXPECT_THAT(text, HasSubstr("the restored mask of a.weight differs: rank "));
    EXPECT_THAT(text, HasSubstr("first at item 23 [2, 3]: rank 0: 1; rank 1: 0"));
  }
}

}  // namespace manager_test
}  // namespace lockstep::recal
