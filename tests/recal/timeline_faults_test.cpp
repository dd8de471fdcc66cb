// What only shows once the model and the steps per epoch are known.
#include <gmock/gmock.h>

#include "recipes.h"

namespace lockstep::recal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string rate(const std::string& window) {
  return "!LearningRateModifier {" + window + ", lr_class: ExponentialLR, lr_kwargs: {gamma: 0.9}}";
}
std::string set_rate(const std::string& epoch) {
  return "!SetLearningRateModifier {start_epoch: " + epoch + ", learning_rate: 0.5}";
}
std::string pruning(const std::string& params,
                    const std::string& more = "start_epoch: 0, end_epoch: 2") {
  return "!GradualKSModifier {params: " + params +
         ", init_sparsity: 0.1, final_sparsity: 0.8, update_frequency: 1, " + more + "}";
}
std::string constant(const std::string& params) {
  return "!ConstantKSModifier {params: " + params + "}";
}

TEST(TimelineFaults, TwoWritersOfTheLearningRate) {
  EXPECT_EQ(compile_faults(
                {rate("start_epoch: 0, end_epoch: 5"), rate("start_epoch: 4.5, end_epoch: 9")}),
            "4:5: LearningRateModifier and LearningRateModifier (r.yaml:3) both write the learning "
            "rate at step 45 (epoch 4.5)");
  EXPECT_EQ(compile_faults({rate("start_epoch: 0, end_epoch: 5"), set_rate("2")}),
            "4:5: SetLearningRateModifier and LearningRateModifier (r.yaml:3) both write the "
            "learning rate at step 20 (epoch 2)");
  EXPECT_NE(compile_faults({set_rate("2"), set_rate("2")}), "");
  EXPECT_NE(compile_faults({set_rate("2.01"), set_rate("2.02")}),
            "");  // one step at 10 steps per epoch
  EXPECT_EQ(compile_faults({set_rate("2.01"), set_rate("2.02")}, 100), "");
  EXPECT_EQ(compile_faults({rate("start_epoch: 0, end_epoch: 5"),
                            rate("start_epoch: 5, end_epoch: 9"), set_rate("9")}),
            "");
}

TEST(TimelineFaults, TwoPrunersOfOneParameter) {
  EXPECT_EQ(compile_faults({pruning("[head]"), pruning("__ALL__", "start_epoch: 5, end_epoch: 7")}),
            "4:5: GradualKSModifier and GradualKSModifier (r.yaml:3) both prune 'head.weight'");
  EXPECT_EQ(compile_faults({constant("__ALL__"), pruning("[head]")}),
            "4:5: GradualKSModifier and ConstantKSModifier (r.yaml:3) both prune 'head.weight'"
            "; list the ConstantKSModifier behind it to keep what it leaves");
  EXPECT_EQ(compile_faults({constant("[head]"), constant("['re:h.*']")}),
            "4:5: ConstantKSModifier and ConstantKSModifier (r.yaml:3) both prune 'head.weight'");
  EXPECT_EQ(compile_faults({pruning("[head]"), constant("__ALL__")}), "");
  EXPECT_NE(compile_faults({pruning("[head]"), constant("__ALL__"), constant("[head]")}), "");
  EXPECT_EQ(compile_faults({pruning("[head]"), pruning("['re:blocks']")}), "");
}

TEST(TimelineFaults, SelectorsThatMatchNothing) {
  EXPECT_EQ(compile_faults({pruning("[blocks.1.conv, haed]")}),
            "3:49: the model has no layer or parameter 'haed' (did you mean 'head'?)");
  EXPECT_EQ(compile_faults({pruning("['zzzzzzzzzz']")}),
            "3:34: the model has no layer or parameter 'zzzzzzzzzz'; there are blocks.0.conv, "
            "blocks.1.conv, head");
  EXPECT_EQ(compile_faults({pruning("['re:conv']")}),
            "3:34: 're:conv' matches no parameter: a pattern must match from the start of a name; "
            "there are blocks.0.conv, blocks.1.conv, head");
  EXPECT_EQ(compile_faults({pruning("[head.bias]")}),
            "3:34: 'head.bias' names only what cannot be pruned (head.bias): weights of linear and "
            "convolution layers can: "
            "blocks.0.conv, blocks.1.conv, head");
}

TEST(TimelineFaults, AllOfNothing) {
  Faults faults;
  Timeline::compile(good_recipe(recipe_of({constant("__ALL__")})),
                    {.steps_per_epoch = 1,
                     .base_learning_rate = 0.1,
                     .params = std::vector<ParamInfo>{{"bias", false, 3}}},
                    &faults);
  EXPECT_THAT(brief(faults), HasSubstr("the model has nothing to prune"));
}

TEST(TimelineFaults, TooManyUpdates) {
  EXPECT_EQ(compile_faults({pruning("__ALL__", "start_epoch: 0, end_epoch: 1000000")}, 10), "");
  Faults faults;
  const Recipe recipe = good_recipe(
      recipe_of({"!GradualKSModifier {params: __ALL__, init_sparsity: 0.1, final_sparsity: 0.8, "
                 "update_frequency: 0.000001, start_epoch: 0, end_epoch: 1000000}"}));
  Timeline::compile(
      recipe, {.steps_per_epoch = 1000000000, .base_learning_rate = 0.1, .params = small_network()},
      &faults);
  EXPECT_THAT(brief(faults), HasSubstr("has more than 1000000 updates: lengthen its period"));
}

std::vector<std::string> warnings_of(const std::vector<std::string>& items,
                                     std::optional<int64_t> max_steps = {}) {
  Faults faults;
  const Recipe recipe = good_recipe(recipe_of(items));
  const TimelineInputs inputs{.steps_per_epoch = 10,
                              .base_learning_rate = 0.1,
                              .params = small_network(),
                              .max_steps = max_steps};
  const Timeline timeline = Timeline::compile(recipe, inputs, &faults);
  EXPECT_TRUE(faults.empty()) << faults.text();
  return timeline.warnings();
}

TEST(TimelineWarnings, FewZerosBringNoSpeed) {
  EXPECT_THAT(
      warnings_of({"!GradualKSModifier {params: __ALL__, init_sparsity: 0.1, final_sparsity: 0.39, "
                   "update_frequency: 1, start_epoch: 0, end_epoch: 2}"}),
      ElementsAre("r.yaml:3: GradualKSModifier: final_sparsity 0.39 is below 0.4: so few zeros "
                  "bring no speed"));
  EXPECT_THAT(warnings_of({pruning("__ALL__")}), ElementsAre());
}

TEST(TimelineWarnings, ModifiersThatNeverFireOrNeverEnd) {
  EXPECT_THAT(warnings_of({pruning("__ALL__"), set_rate("3")}),
              ElementsAre("r.yaml:4: SetLearningRateModifier: never fires: it starts at step 30, "
                          "the run has 20 steps"));
  EXPECT_THAT(
      warnings_of({rate("start_epoch: 0.11, end_epoch: 0.19"), pruning("__ALL__")}),
      ElementsAre(
          "r.yaml:3: LearningRateModifier: never fires: its window is shorter than one step"));
  EXPECT_THAT(warnings_of({pruning("__ALL__")}, 15),
              ElementsAre("r.yaml:3: GradualKSModifier: never reaches its end: that is step 20, "
                          "the run has 15 steps"));
  EXPECT_THAT(
      warnings_of({pruning("__ALL__", "start_epoch: 2, end_epoch: 3")}, 15),
      ElementsAre(
          "r.yaml:3: GradualKSModifier: never fires: it starts at step 20, the run has 15 steps"));
  EXPECT_THAT(warnings_of({pruning("__ALL__")}, 20),
              ElementsAre());  // its last value comes with finalize
  EXPECT_THAT(warnings_of({constant("__ALL__"), set_rate("1")}), ElementsAre());
}

}  // namespace
}  // namespace lockstep::recal
