// Faults that show only once the model and the steps per epoch are known.
#include <gmock/gmock.h>

#include "tests/recal/recipes.h"

namespace lockstep::recal {
namespace timeline_faults_test {

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

TEST(TimelineFaults, TwoWritersOfOneGroup) {
  const auto of_group = [](const std::string& tag, int group) {
    return "!" + tag + (tag.starts_with("SetWeight") ? " {weight_decay" : " {learning_rate") +
           ": 0.5, start_epoch: 2, param_groups: [" + std::to_string(group) + "]}";
  };
  const std::string rate_tag = "SetLearningRateModifier";
  const std::string decay_tag = "SetWeightDecayModifier";
  EXPECT_EQ(compile_faults({of_group(rate_tag, 0), of_group(rate_tag, 1)}), "");
  EXPECT_EQ(compile_faults({of_group(rate_tag, 1), of_group(rate_tag, 1)}),
            "4:5: SetLearningRateModifier and SetLearningRateModifier (r.yaml:3) both write the "
            "learning rate of parameter group 1 at step 20 (epoch 2)");
  EXPECT_EQ(compile_faults({rate("start_epoch: 0, end_epoch: 5"), of_group(rate_tag, 1)}),
            "4:5: SetLearningRateModifier and LearningRateModifier (r.yaml:3) both write the "
            "learning rate of parameter group 1 at step 20 (epoch 2)");
  EXPECT_EQ(compile_faults({of_group(decay_tag, 0), of_group(decay_tag, 0)}),
            "4:5: SetWeightDecayModifier and SetWeightDecayModifier (r.yaml:3) both write the "
            "weight decay of parameter group 0 at step 20 (epoch 2)");
  EXPECT_EQ(compile_faults({of_group(decay_tag, 0), of_group(decay_tag, 1)}), "");
  EXPECT_EQ(compile_faults({of_group(decay_tag, 0), of_group(rate_tag, 0)}), "");
}

TEST(TimelineFaults, ARateBesideTheOptimizersOwnDecay) {
  const auto faults = [](const std::string& item, const std::string& decay) {
    Diagnostics found;
    const Recipe recipe = good_recipe(recipe_of({item}));
    Timeline::compile(
        recipe,
        {.steps_per_epoch = 10, .params = small_network(), .learning_rate_decay_type = decay},
        &found);
    return brief(found);
  };
  const std::string function =
      "!LearningRateFunctionModifier {start_epoch: 0, end_epoch: 1, lr_func: linear, init_lr: 1, "
      "final_lr: 0}";
  EXPECT_EQ(
      faults(set_rate("2"), "exponential"),
      "3:5: SetLearningRateModifier writes the learning rate, and so does "
      "optimizer.learning_rate_decay_type: it is exponential, it must be fixed with this modifier");
  EXPECT_NE(faults(rate("start_epoch: 0, end_epoch: 5"), "polynomial"), "");
  EXPECT_NE(faults(function, "polynomial"), "");
  EXPECT_EQ(faults(function, "fixed"), "");
  EXPECT_EQ(faults(pruning("__ALL__"), "exponential"), "");
}

TEST(TimelineFaults, TwoSettersOfOneValue) {
  const std::string once = "!SetParamModifier {params: [head.bias], val: 1, start_epoch: 2}";
  const std::string often =
      "!GradualParamModifier {params: [head], init_val: 1, final_val: 0, start_epoch: 0, "
      "end_epoch: "
      "2, update_frequency: 1}";
  EXPECT_EQ(compile_faults({often, once}),
            "4:5: SetParamModifier and GradualParamModifier (r.yaml:3) both set the values of "
            "'head.bias' at step 20");
  EXPECT_EQ(
      compile_faults({often, "!SetParamModifier {params: [head.bias], val: 1, start_epoch: 2.1}"}),
      "");
  EXPECT_EQ(
      compile_faults({once, "!SetParamModifier {params: [head.weight], val: 1, start_epoch: 2}"}),
      "");
}

TEST(TimelineFaults, TwoPrunersOfOneParameter) {
  EXPECT_EQ(
      compile_faults({pruning("[head]"), pruning("__ALL__", "start_epoch: 1, end_epoch: 7")}),
      "4:5: GradualKSModifier and GradualKSModifier (r.yaml:3) both prune 'head.weight' at step "
      "10: let one end where the other starts");
  EXPECT_EQ(compile_faults({pruning("[head]"), pruning("__ALL__", "start_epoch: 5, end_epoch: 7")}),
            "");
  EXPECT_EQ(compile_faults({constant("__ALL__"), pruning("[head]")}),
            "4:5: GradualKSModifier and ConstantKSModifier (r.yaml:3) both prune 'head.weight'; "
            "list the ConstantKSModifier after it to keep its zeros");
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
            "3:34: the model has no layer or parameter 'zzzzzzzzzz'; available: blocks.0.conv, "
            "blocks.1.conv, head");
  EXPECT_EQ(compile_faults({pruning("['re:conv']")}),
            "3:34: 're:conv' matches no parameter: a pattern must match from the start of a name; "
            "available: blocks.0.conv, blocks.1.conv, head");
  EXPECT_EQ(compile_faults({pruning("[head.bias]")}),
            "3:34: 'head.bias' names only what cannot be pruned (head.bias): weights of linear and "
            "convolution layers can: "
            "blocks.0.conv, blocks.1.conv, head");
}

TEST(TimelineFaults, AllOfNothing) {
  Diagnostics faults;
  Timeline::compile(good_recipe(recipe_of({constant("__ALL__")})),
                    {.steps_per_epoch = 1,
                     .base_learning_rate = 0.1,
                     .params = std::vector<ParamInfo>{{"bias", false, 3}}},
                    &faults);
  EXPECT_THAT(brief(faults), HasSubstr("the model has nothing to prune"));
}

TEST(TimelineFaults, TooManyUpdates) {
  const auto pruned = [](const std::string& param, const std::string& rest) {
    return "!GradualKSModifier {params: " + param +
           ", init_sparsity: 0.1, final_sparsity: 0.8, start_epoch: 0, " + rest + "}";
  };
  const std::string long_one = pruned("head", "end_epoch: 60000, update_frequency: 1");
  EXPECT_EQ(compile_faults({long_one}), "");
  EXPECT_EQ(compile_faults({long_one, pruned("blocks.0.conv",
                                             "end_epoch: 60000, "
                                             "update_frequency: 1")}),
            "4:5: GradualKSModifier has more than 40000 updates (of 100000 for a recipe): lengthen "
            "its period");
  Diagnostics faults;
  Timeline::compile(
      good_recipe(recipe_of({pruned("__ALL__", "update_frequency: 0.000001, end_epoch: 1000000")})),
      {.steps_per_epoch = 1000000000, .base_learning_rate = 0.1, .params = small_network()},
      &faults);
  EXPECT_THAT(brief(faults), HasSubstr("has more than 100000 updates: lengthen its period"));
}

std::vector<std::string> warnings_of(const std::vector<std::string>& items,
                                     std::optional<int64_t> max_steps = {}) {
  Diagnostics faults;
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
                  "give no speedup"));
  EXPECT_THAT(warnings_of({pruning("__ALL__")}), ElementsAre());
}

TEST(TimelineWarnings, UnusualValuesOfPruning) {
  const auto warnings = [](const std::string& values, const std::string& window) {
    std::vector<std::string> texts;
    for (const std::string& text : warnings_of(
             {"!GradualKSModifier {params: __ALL__, start_epoch: 0, " + values + window + "}"}))
      texts.push_back(text.substr(std::string("r.yaml:3: GradualKSModifier: ").size()));
    return texts;
  };
  const std::string often = ", end_epoch: 5, update_frequency: 0.5";
  const auto of_sparsities = [&](const std::string& init, const std::string& last) {
    return warnings("init_sparsity: " + init + ", final_sparsity: " + last, often);
  };
  for (const auto& [init, last] : {std::pair{"0.05", "0.6"}, {"0.2", "0.95"}, {"0.001", "0.8"}})
    EXPECT_THAT(of_sparsities(init, last), ElementsAre());
  EXPECT_THAT(of_sparsities("0.21", "0.8"),
              ElementsAre("init_sparsity 0.21 is far from the usual 0.05"));
  EXPECT_THAT(of_sparsities("0", "0.8"), ElementsAre("init_sparsity 0 is far from the usual 0.05"));
  EXPECT_THAT(of_sparsities("0.05", "0.4"),
              ElementsAre("final_sparsity 0.4 is outside the usual 0.6 to 0.95"));
  EXPECT_THAT(of_sparsities("0.05", "0.96"),
              ElementsAre("final_sparsity 0.96 is outside the usual 0.6 to 0.95"));
  EXPECT_THAT(of_sparsities("0.05", "0.3, mask_type: '1:2'"), ElementsAre());
  const std::string usual = "init_sparsity: 0.05, final_sparsity: 0.8";
  EXPECT_THAT(
      warnings(usual, ", end_epoch: 5, update_frequency: 1.5"),
      ElementsAre(
          "update_frequency 1.5 is longer than the usual 1 epoch: each mask prunes more at once"));
  EXPECT_THAT(warnings(usual, ", end_epoch: 1, update_frequency: 1"),
              ElementsAre("computes only 2 masks between its start and its end: shorten "
                          "update_frequency, so that each prunes less"));
  EXPECT_THAT(warnings(usual, ", end_epoch: 2, update_frequency: 1"), ElementsAre());
}

TEST(TimelineNotes, ARateForAdam) {
  const auto compiled_for = [](const std::string& item, const std::string& type) {
    Diagnostics faults;
    const Recipe recipe = good_recipe(recipe_of({item}));
    return Timeline::compile(
        recipe, {.steps_per_epoch = 10, .params = small_network(), .optimizer_type = type},
        &faults);
  };
  EXPECT_THAT(compiled_for(set_rate("2"), "adam").warnings(), ElementsAre());
  EXPECT_THAT(compiled_for(set_rate("2"), "adam").notes(),
              ElementsAre("r.yaml:3: SetLearningRateModifier: adam scales each step itself: a "
                          "warm-up of the learning rate is common with it, a longer schedule "
                          "changes less than with sgd"));
  EXPECT_THAT(compiled_for(set_rate("2"), "sgd").notes(), ElementsAre());
  EXPECT_THAT(compiled_for(pruning("[head]"), "adam").notes(), ElementsAre());
}

TEST(TimelineWarnings, AllOfALayer) {
  const auto warnings = [](const std::string& mask_type, std::vector<int64_t> sizes) {
    std::vector<ParamInfo> params = small_network();
    params[4].sizes = std::move(sizes);
    Diagnostics faults;
    const Timeline timeline = Timeline::compile(
        good_recipe(recipe_of({"!GradualKSModifier {params: [head], init_sparsity: 0.1, "
                               "final_sparsity: 0.95, update_frequency: 1, start_epoch: 0, "
                               "end_epoch: 3, mask_type: " +
                               mask_type + "}"})),
        {.steps_per_epoch = 10, .params = std::move(params)}, &faults);
    EXPECT_TRUE(faults.empty()) << faults.text();
    return timeline.warnings();
  };
  const std::string head =
      "r.yaml:3: GradualKSModifier: final_sparsity 0.95 prunes all of 'head.weight'";
  EXPECT_THAT(warnings("filter", {10, 4}),
              ElementsAre(head + " with mask_type filter: the largest filter is kept"));
  EXPECT_THAT(warnings("channel", {40, 1}),
              ElementsAre(head + " with mask_type channel: the largest channel is kept"));
  EXPECT_THAT(warnings("block4", {1, 40}),
              ElementsAre(head + " with mask_type block4: the largest block is kept"));
  EXPECT_THAT(warnings("unstructured", {1, 3}),
              ElementsAre(head + ": the layer outputs only zeros; name it in a separate modifier"));
  EXPECT_THAT(warnings("filter", {11, 4}), ElementsAre());  // round(10.45) = 10 of 11
  EXPECT_THAT(warnings("unstructured", {10, 4}), ElementsAre());
}

TEST(TimelineWarnings, ModifiersThatNeverFireOrNeverEnd) {
  EXPECT_THAT(warnings_of({pruning("__ALL__"), set_rate("3")}),
              ElementsAre("r.yaml:4: SetLearningRateModifier: never fires: it starts at step 30, "
                          "the run has 30 steps"));
  EXPECT_THAT(warnings_of({pruning("__ALL__"), set_rate("2.5")}), ElementsAre());  // 30 steps
  EXPECT_THAT(
      warnings_of({rate("start_epoch: 0.11, end_epoch: 0.19"), pruning("__ALL__")}),
      ElementsAre(
          "r.yaml:3: LearningRateModifier: never fires: its window is shorter than one step"));
  EXPECT_THAT(warnings_of({pruning("__ALL__")}, 15),
              ElementsAre("r.yaml:3: GradualKSModifier: never reaches its end: that is step 20, "
                          "the run has 15 steps"));
  EXPECT_THAT(
      warnings_of({pruning("__ALL__", "start_epoch: 2, end_epoch: 4")}, 15),
      ElementsAre(
          "r.yaml:3: GradualKSModifier: never fires: it starts at step 20, the run has 15 steps"));
  EXPECT_THAT(warnings_of({pruning("__ALL__")}, 20),
              ElementsAre());  // its last value comes with finalize
  EXPECT_THAT(warnings_of({constant("__ALL__"), set_rate("1")}), ElementsAre());
  const std::string range = "!EpochRangeModifier {start_epoch: 0, end_epoch: 2}";
  for (const std::string item :
       {"SetWeightDecayModifier {weight_decay: 1, start_epoch: 2}",
        "TrainableParamsModifier {params: [head], trainable: false, start_epoch: 2}",
        "LearningRateFunctionModifier {lr_func: linear, init_lr: 1, final_lr: 0, start_step: 20, "
        "end_step: 21}"})
    EXPECT_THAT(warnings_of({range, "!" + item}, 20),
                ElementsAre(HasSubstr("never fires: it starts at step 20, the run has 20 steps")))
        << item;
  EXPECT_THAT(warnings_of({range, "!SetParamModifier {params: [head], val: 1, start_epoch: 2}"}),
              ElementsAre());  // comes with finalize
  EXPECT_THAT(warnings_of({range,
                           "!TrainableParamsModifier {params: [head], trainable: false, "
                           "end_epoch: 2}"},
                          15),
              ElementsAre("r.yaml:4: TrainableParamsModifier: never reaches its end: that is step "
                          "20, the run has 15 steps"));
}

}  // namespace timeline_faults_test
}  // namespace lockstep::recal
