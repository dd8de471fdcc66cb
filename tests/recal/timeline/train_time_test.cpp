// Moments in epochs and in steps, and -1 for the run's ends.
#include <gmock/gmock.h>

#include "recal/schedule/train_time.h"
#include "tests/recal/recipes.h"

namespace lockstep::recal {
namespace train_time_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string pruning(const std::string& window, const std::string& period = "update_frequency: 1") {
  return "!GradualKSModifier {params: __ALL__, init_sparsity: 0.05, final_sparsity: 0.8, " +
         window + ", " + period + "}";
}
std::vector<int64_t> masks(const std::string& window,
                           const std::string& period = "update_frequency: 1") {
  return steps_of(compiled(recipe_of({pruning(window, period)}), 10), ActionKind::kPrune);
}

TEST(Moments, StepsStandForEpochs) {
  EXPECT_THAT(masks("start_step: 5, end_step: 35"), ElementsAre(5, 15, 25, 35));
  EXPECT_THAT(masks("start_epoch: 0.5, end_step: 35"), ElementsAre(5, 15, 25, 35));
  EXPECT_THAT(masks("start_step: 5, end_epoch: 3.5"), ElementsAre(5, 15, 25, 35));
  EXPECT_THAT(masks("start_epoch: 0.5, end_epoch: 3.5", "update_frequency_steps: 12"),
              ElementsAre(5, 17, 29, 35));
  EXPECT_THAT(masks("start_epoch: 0.5, end_epoch: 3.5", "update_frequency: 1.2"),
              ElementsAre(5, 17, 29, 35));
}

TEST(Moments, MixedUnitsTakeTheCurveAtTheSamePlaces) {
  const auto values = [](const std::string& window, const std::string& period) {
    std::vector<double> found;
    const Timeline timeline = compiled(recipe_of({pruning(window, period)}), 10);
    for (const Action& action : timeline.actions()) found.push_back(action.value);
    return found;
  };
  const std::vector<double> epochs =
      values("start_epoch: 0.5, end_epoch: 3.5", "update_frequency: 1");
  const std::vector<double> steps =
      values("start_step: 5, end_epoch: 3.5", "update_frequency_steps: 10");
  ASSERT_EQ(epochs.size(), steps.size());
  for (size_t i = 0; i < epochs.size(); ++i) EXPECT_NEAR(epochs[i], steps[i], 1e-15);
}

TEST(Moments, AMixedWindowMayBeEmptyOnlyInSteps) {
  EXPECT_EQ(
      compile_faults({pruning("start_step: 10, end_epoch: 1")}),
      "3:5: GradualKSModifier ends at epoch 1 (step 10), which is not after its start at step "
      "10 (step 10)");
  EXPECT_EQ(compile_faults({pruning("start_step: 10, end_epoch: 1")}, 11), "");
}

TEST(Moments, ExactlyOneOfTwoTwins) {
  const auto faults = [](const std::string& more) { return faults_of(recipe_of({pruning(more)})); };
  EXPECT_EQ(faults("start_epoch: 1, start_step: 1, end_epoch: 3"),
            "3:112: 'GradualKSModifier.start_epoch' and 'start_step' are both given: keep one of "
            "them");
  EXPECT_EQ(faults("start_epoch: 1"),
            "3:5: 'GradualKSModifier.end_epoch' (or 'end_step') is required");
  EXPECT_THAT(faults("start_epoch: 1, end_step: 2.5"),
              HasSubstr("'GradualKSModifier.end_step' must be a whole number, not '2.5'"));
  EXPECT_THAT(
      faults("start_step: 5, end_step: 5"),
      HasSubstr("'GradualKSModifier.end_step' is 5, it must be greater than start_step (5)"));
  EXPECT_THAT(faults("start_step: -2, end_step: 5"), HasSubstr("it must be >= 0"));
  EXPECT_THAT(
      faults_of(recipe_of({pruning("start_step: 1, end_step: 5",
                                   "update_frequency: 1, update_frequency_steps: 10")})),
      HasSubstr(
          "'GradualKSModifier.update_frequency' and 'update_frequency_steps' are both given"));
  EXPECT_THAT(
      faults_of(recipe_of({pruning("start_step: 1, end_step: 5", "update_frequency_steps: 0")})),
      HasSubstr("'GradualKSModifier.update_frequency_steps' is 0, it must be >= 1"));
}

TEST(Moments, MinusOneIsTheRunsStartAndEnd) {
  EXPECT_THAT(masks("start_epoch: -1, end_epoch: 2"), ElementsAre(0, 10, 20));
  const std::string range = "!EpochRangeModifier {start_epoch: 0, end_epoch: 3.25}";
  for (const std::string end : {"end_epoch: -1", "end_step: -1", "end_epoch: -1.0"}) {
    const Timeline timeline = compiled(recipe_of({range, pruning("start_epoch: 1, " + end)}), 10);
    EXPECT_THAT(steps_of(timeline, ActionKind::kPrune), ElementsAre(10, 20, 30, 33));
    EXPECT_EQ(timeline.total_steps(), 33);
    EXPECT_EQ(timeline.modifiers()[1].end_step, 33);
    EXPECT_EQ(timeline.max_epochs(), 4);
  }
}

Timeline compiled_with_cap(const std::string& item, std::optional<int64_t> max_steps,
                           std::string* faults) {
  Diagnostics found;
  const Recipe recipe = good_recipe(recipe_of({item}));
  Timeline timeline = Timeline::compile(
      recipe, {.steps_per_epoch = 10, .params = small_network(), .max_steps = max_steps}, &found);
  *faults = brief(found);
  return timeline;
}

TEST(Moments, TheRunsEndIsItsCapWhereNoModifierNamesIt) {
  std::string faults;
  const std::string item = pruning("start_epoch: 0, end_epoch: -1");
  EXPECT_EQ(compiled_with_cap(item, 25, &faults).total_steps(), 25);
  EXPECT_EQ(faults, "");
  compiled_with_cap(item, std::nullopt, &faults);
  EXPECT_EQ(faults,
            "3:5: GradualKSModifier lasts to the run's end (-1), which is unknown: add an "
            "!EpochRangeModifier, or train.max_steps to the run file");
  compiled_with_cap(pruning("start_epoch: 9, end_epoch: -1"), 25, &faults);
  EXPECT_EQ(faults,
            "3:5: GradualKSModifier ends at the run's end (step 25), which is not after its start "
            "at epoch 9 (step 90)");
  // Without -1 the cap does not become part of the schedule.
  EXPECT_EQ(compiled_with_cap("!ConstantKSModifier {params: __ALL__}", 25, &faults).total_steps(),
            std::nullopt);
}

TEST(Moments, ARunInStepsHasEpochsToo) {
  const Timeline timeline =
      compiled(recipe_of({"!EpochRangeModifier {start_step: 25, end_step: 101}"}), 10);
  EXPECT_EQ(timeline.total_steps(), 101);
  EXPECT_EQ(timeline.max_epochs(), 11);
  EXPECT_EQ(timeline.min_epochs(), 2);
}

TEST(Moments, AnUpdateAtEveryStepMustBeSpelledOut) {
  EXPECT_THAT(faults_of(recipe_of({pruning("start_step: 1, end_step: 5", "update_frequency: -1")})),
              HasSubstr("'GradualKSModifier.update_frequency' is -1: for an update at every step "
                        "write update_frequency_steps: 1; once an epoch (1.0) is usual"));
  EXPECT_THAT(masks("start_step: 1, end_step: 5", "update_frequency_steps: 1"),
              ElementsAre(1, 2, 3, 4, 5));
}

// Each repetition's step comes from exact decimals; the double only points near it.
TEST(Recurrence, FindsTheLastRepetition) {
  for (const int64_t steps_per_epoch : {1, 7, 10, 469})
    for (const char* period : {"0.01", "0.3", "1.1", "2"}) {
      const Recurrence rhythm{.start_epochs = *Decimal::parse("1.1"),
                              .period = {.epochs = *Decimal::parse(period)}};
      for (int64_t step = rhythm.step(0, steps_per_epoch); step < 60; ++step) {
        const int64_t k = rhythm.last_until(step, steps_per_epoch);
        EXPECT_LE(rhythm.step(k, steps_per_epoch), step);
        EXPECT_GT(rhythm.step(k + 1, steps_per_epoch), step);
      }
    }
}

}  // namespace train_time_test
}  // namespace lockstep::recal
