// Phases of AC/DC pruning.
#include <gmock/gmock.h>

#include "dist/communicator.h"
#include "tests/recal/modifiers/timeline_events.h"
#include "tests/recal/small_training.h"

namespace lockstep::recal {
namespace acdc_modifier_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::events;

std::string acdc(const std::string& more, const std::string& end = "6") {
  return "!ACDCPruningModifier {params: [head], compression_sparsity: 0.75, start_epoch: 0, "
         "end_epoch: " +
         end + ", update_frequency: 1" + (more.empty() ? "" : ", ") + more + "}";
}

TEST(Acdc, AlternatesAndEndsPruned) {
  EXPECT_THAT(
      events({acdc("")}),
      ElementsAre("10 sparsity 0.750000 for head.weight", "20 sparsity 0.000000 for head.weight",
                  "20 release the masks of head.weight", "30 sparsity 0.750000 for head.weight",
                  "40 sparsity 0.000000 for head.weight", "40 release the masks of head.weight",
                  "50 sparsity 0.750000 for head.weight"));
}

TEST(Acdc, TheLastPhaseIsPrunedWhateverItsNumber) {
  EXPECT_THAT(events({acdc("", "3")}), ElementsAre("10 sparsity 0.750000 for head.weight"));
  EXPECT_THAT(events({acdc("", "1")}), ElementsAre("0 sparsity 0.750000 for head.weight"));
  EXPECT_THAT(
      events({acdc("leave_enabled: false", "1")}),
      ElementsAre("0 sparsity 0.750000 for head.weight", "10 release the masks of head.weight"));
}

TEST(Acdc, ResetsTheMomentumOfDensePhasesOnly) {
  const auto resets = [](const std::string& more) {
    std::vector<std::string> kinds;
    const Timeline timeline = compiled(recipe_of({acdc(more)}), 10);
    for (const Action& action : timeline.actions())
      if (timeline.param_sets()[static_cast<size_t>(action.param_set)].momentum_buffer_reset)
        kinds.emplace_back(traits_of(action.kind).name);
    return kinds;
  };
  EXPECT_THAT(resets(""), ElementsAre("release", "release"));
  EXPECT_THAT(resets("momentum_buffer_reset: false"), ElementsAre());
}

TEST(Acdc, Refusals) {
  EXPECT_THAT(faults_of(recipe_of({acdc("mask_type: '2:4'")})),
              HasSubstr("'ACDCPruningModifier.compression_sparsity' is 0.75, which mask_type 2:4 "
                        "cannot reach"));
  EXPECT_THAT(compile_faults({acdc(""),
                              "!GMPruningModifier {params: [head], init_sparsity: 0.05, "
                              "final_sparsity: 0.5, start_epoch: 2, end_epoch: 3, "
                              "update_frequency: 1}"}),
              HasSubstr("both prune 'head.weight'"));
}

/// Weights of the dense phases grow back, and each pruned phase chooses anew.
TEST(Acdc, TrainsDenseAndPrunedNetworksInTurn) {
  dist::SelfCommunicator comm;
  Training run(
      recipe_of({"!ACDCPruningModifier {params: [a], compression_sparsity: 0.8, start_epoch: "
                 "0, end_epoch: 4, update_frequency: 1}",
                 "!SetLearningRateModifier {learning_rate: 1.0}",
                 "!EpochRangeModifier {start_epoch: 0, end_epoch: 5}"}));
  std::vector<int64_t> zeros;
  std::vector<at::Tensor> masks;
  for (int64_t step = 0; step < 20; ++step) {
    run.step(comm);
    if (step % kStepsPerEpoch != 0) continue;
    zeros.push_back(run.num_zeros(0));
    masks.push_back(run.manager.masks().of(0).kept_bits.clone());
  }
  EXPECT_THAT(zeros, ElementsAre(0, 80, 0, 80, 80));
  EXPECT_FALSE(at::equal(masks[1], masks[3]));
  EXPECT_TRUE(at::equal(masks[3], masks[4]));
}

}  // namespace acdc_modifier_test
}  // namespace lockstep::recal
