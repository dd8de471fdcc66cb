#include "recal/schedule/timeline.h"

#include <gmock/gmock.h>

#include "tests/recal/recipes.h"

namespace lockstep::recal {
namespace timeline_changes_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kRange = "!EpochRangeModifier {start_epoch: 0, end_epoch: 4}";
const std::string kRate = "!SetLearningRateModifier {start_epoch: 2, learning_rate: 0.03}";

std::string pruning(const std::string& final_sparsity, const std::string& more = "") {
  return "!GradualKSModifier {params: [head], init_sparsity: 0.1, final_sparsity: " +
         final_sparsity + ", start_epoch: 0, end_epoch: 3, update_frequency: 1.5" + more + "}";
}

std::string canonical(const std::vector<std::string>& items, int64_t steps_per_epoch = 10) {
  return compiled(recipe_of(items), steps_per_epoch).canonical_text();
}

std::vector<std::string> changes(const std::vector<std::string>& saved,
                                 const std::vector<std::string>& now, int64_t step = 0) {
  return timeline_changes(canonical(saved), canonical(now), step);
}

TEST(CanonicalText, HasOneSortedLineAnEntry) {
  EXPECT_EQ(canonical({kRange, pruning("0.8", ", mask_type: block4"), kRate,
                       "!SetWeightDecayModifier {start_epoch: 2, weight_decay: 0}"}),
            "lockstep timeline 2\n"
            "steps_per_epoch 10\n"
            "base_learning_rate 0.1\n"
            "total_steps 40\n"
            "quantized_weights per_channel\n"
            "params 0 block4: head.weight\n"
            "step 0 prune params 0: 0.1\n"
            "step 15 prune params 0: 0.7125\n"
            "step 20 learning_rate group all: 0.03\n"
            "step 20 weight_decay group 0: 0\n"
            "step 30 prune params 0: 0.8\n");
}

TEST(CanonicalText, DoesNotDependOnTheOrderInTheRecipe) {
  const std::string other = "!TrainableParamsModifier {params: [blocks.0.conv], trainable: false}";
  const std::string more =
      "!GradualKSModifier {params: ['re:blocks'], init_sparsity: 0.2, final_sparsity: 0.7, "
      "start_epoch: 0, end_epoch: 3, update_frequency: 1}";
  EXPECT_EQ(canonical({kRange, pruning("0.8"), kRate, other, more}),
            canonical({more, other, kRate, pruning("0.8"), kRange}));
}

TEST(TimelineChanges, NoneBetweenEqualSchedules) {
  EXPECT_THAT(changes({kRange, pruning("0.8")}, {pruning("0.80"), kRange}), IsEmpty());
}

TEST(TimelineChanges, EntryByEntry) {
  EXPECT_THAT(changes({kRange, pruning("0.8")}, {kRange, pruning("0.9")}, 20),
              ElementsAre("step 15 (past): prune of head.weight: 0.7125 in the checkpoint, 0.8 now",
                          "step 30: prune of head.weight: 0.8 in the checkpoint, 0.9 now"));
  EXPECT_THAT(changes({kRange, kRate}, {kRange}, 20),
              ElementsAre("step 20: learning_rate of all groups: 0.03 only in the checkpoint"));
  EXPECT_THAT(changes({kRange}, {kRange, kRate}, 21),
              ElementsAre("step 20 (past): learning_rate of all groups: 0.03 only now"));
}

// Numbers of parameter sets differ as soon as a modifier comes in; names must not.
TEST(TimelineChanges, ParametersAreComparedByName) {
  EXPECT_THAT(changes({kRange, pruning("0.8")},
                      {kRange, pruning("0.8"), "!ConstantKSModifier {params: ['re:blocks']}"}),
              ElementsAre("step 0: keep_zeros of blocks.0.conv.weight and 1 more: 0 only now"));
  EXPECT_THAT(changes({kRange, "!ConstantKSModifier {params: [head]}"},
                      {kRange, "!ConstantKSModifier {params: [blocks.0.conv]}"}),
              ElementsAre("step 0: keep_zeros of blocks.0.conv.weight: 0 only now",
                          "step 0: keep_zeros of head.weight: 0 only in the checkpoint"));
}

TEST(TimelineChanges, AnotherMaskIsAnotherEntry) {
  const std::vector<std::string> lines =
      changes({kRange, pruning("0.5")}, {kRange, pruning("0.5", ", mask_type: 2:4")});
  ASSERT_EQ(lines.size(), 6U);
  EXPECT_EQ(lines[0], "step 0: prune of head.weight: 0.1 only in the checkpoint");
  EXPECT_EQ(lines[1], "step 0: prune of head.weight (2:4): 0.1 only now");
}

TEST(TimelineChanges, Formulas) {
  const auto linear = [](const std::string& last) {
    return "!LearningRateFunctionModifier {start_epoch: 0, end_epoch: 2, lr_func: linear, init_lr: "
           "0.1, final_lr: " +
           last + "}";
  };
  EXPECT_THAT(
      changes({linear("0.01")}, {linear("0.02")}, 5),
      ElementsAre(
          "step 0 (past): learning_rate of all groups: linear from 0.1 to 0.01 over 0 to 20 until "
          "20 in the checkpoint, linear from 0.1 to 0.02 over 0 to 20 until 20 now"));
}

TEST(TimelineChanges, SettingsAndALongList) {
  const std::string often =
      "!GradualKSModifier {params: [head], init_sparsity: 0.1, final_sparsity: 0.8, start_epoch: "
      "0, "
      "end_epoch: 4, update_frequency: 0.1}";
  const std::vector<std::string> lines =
      timeline_changes(canonical({often}, 10), canonical({often}, 20), 30);
  ASSERT_EQ(lines.size(), 2 + kMaxChangeLines + 1);
  EXPECT_EQ(lines[0], "steps per epoch: 10 in the checkpoint, 20 now");
  EXPECT_EQ(lines[1], "total steps: 40 in the checkpoint, 80 now");
  // Steps 1 to 40 and 42, 44, ... to 80 differ: 60 entries.
  EXPECT_EQ(lines.back(), "and 40 entries more, 9 of them past");
}

TEST(TimelineChanges, ALimitThatAppears) {
  EXPECT_THAT(changes({kRate}, {kRate, kRange}),
              ElementsAre("total steps: no limit in the checkpoint, 40 now"));
}

TEST(TimelineChanges, OtherVersionsAndDamagedTexts) {
  EXPECT_THAT(timeline_changes("lockstep timeline 1\nsteps_per_epoch 10\n", canonical({kRange}), 0),
              ElementsAre(HasSubstr("another version")));
  const std::string now = canonical({kRange, kRate});
  for (const std::string damaged : {"lockstep timeline 2", "lockstep timeline 2\nstep",
                                    "lockstep timeline 2\nstep x y", "lockstep timeline 2\n\n\n"})
    EXPECT_FALSE(timeline_changes(damaged, now, 0).empty());
}

}  // namespace timeline_changes_test
}  // namespace lockstep::recal
