// The manager's interface to a program: order of calls, summaries, faults.
#include <cctype>
#include <map>

#include <gmock/gmock.h>

#include "base/error.h"
#include "base/log.h"
#include "dist/communicator.h"
#include "small_training.h"

namespace lockstep::recal {
namespace manager_face_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Manager, UseInTheWrongOrderIsRefused) {
  dist::SelfCommunicator comm;
  ScheduledModifierManager manager(good_recipe(short_run()));
  Diagnostics faults;
  EXPECT_THROW(manager.apply_due(0, comm), StateError);
  EXPECT_THROW(manager.attach({}, {}, &faults), StateError);
  EXPECT_THROW(manager.initialize(), StateError);
  EXPECT_THROW((void)manager.timeline(), StateError);
  EXPECT_THROW(manager.end_step(true, comm), StateError);
  Training run(short_run());
  EXPECT_THROW(run.manager.attach(run.params, {}, &faults), StateError);
  run.step(comm);
  try {
    run.manager.attach(run.params, {}, &faults);
    FAIL() << "no error";
  } catch (const StateError& error) {
    EXPECT_STREQ(error.what(), "[recal] attach() comes before the run: it has started");
  }
  run.manager.finalize(1, comm);
  EXPECT_THROW(run.manager.apply_due(1, comm), StateError);
  EXPECT_THROW(run.manager.restored(comm), StateError);
  run.manager.finalize(1, comm);  // idempotent
}

TEST(Manager, InitializeIsIdempotentAndOptional) {
  dist::SelfCommunicator comm;
  Training plain(short_run()), eager(short_run());
  eager.manager.initialize();
  eager.manager.initialize();
  for (Training* run : {&plain, &eager}) run->go_on_until(12, comm);
  eager.manager.initialize();
  for (Training* run : {&plain, &eager}) run->go_on_until(24, comm);
  expect_same(plain, eager);
}

TEST(Manager, FinalizeLeavesZerosAndTakesTheMasksAway) {
  dist::SelfCommunicator comm;
  Training run(short_run());
  run.go_on_until(24, comm);
  run.params[0].tensor.detach().fill_(1);  // what an export must not hold
  run.manager.finalize(24, comm);
  EXPECT_EQ(run.num_zeros(0), 80);
  EXPECT_TRUE(run.manager.state().empty());
  EXPECT_DOUBLE_EQ(run.manager.sparsity(), 0.4);  // the count stays
  EXPECT_EQ(run.manager.measure()[0].num_pruned, 80);
}

TEST(Manager, GradientsOfPrunedWeightsAreZeroed) {
  dist::SelfCommunicator comm;
  Training run(short_run());
  run.go_on_until(18, comm);
  for (const Param& param : run.params) param.tensor.mutable_grad() = at::ones_like(param.tensor);
  run.manager.mask_gradients();
  EXPECT_EQ(run.params[0].tensor.grad().sum().item<double>(), 20);
  EXPECT_TRUE(at::equal(run.params[0].tensor.grad().ne(0), run.params[0].tensor.ne(0)));
  EXPECT_EQ(run.params[2].tensor.grad().sum().item<double>(), 100);
  const at::Tensor moments = at::ones({10, 10});
  run.manager.zero_pruned(0, moments);
  EXPECT_EQ(moments.sum().item<double>(), 20);
}

TEST(Manager, CountsWeightsThatAnUpdateRevived) {
  dist::SelfCommunicator comm;
  const std::string recipe =
      recipe_of({"!GradualKSModifier {params: [a], init_sparsity: 0.5, final_sparsity: 0.5, "
                 "start_epoch: 0, end_epoch: 1, update_frequency: 1}",
                 "!EpochRangeModifier {start_epoch: 0, end_epoch: 30}"});
  Training moved(recipe), kept(recipe);
  moved.go_on_until(101, comm);                 // its updates write every weight
  EXPECT_EQ(moved.manager.num_revived(), 100);  // 50 at step 0, 50 at step 100
  for (int64_t step = 0; step < 101; ++step) {
    kept.manager.apply_due(step, comm);
    kept.manager.end_step(true, comm);
  }
  EXPECT_EQ(kept.manager.num_revived(), 0);
}

TEST(Manager, LooksAtPrunedWeightsRarelyWhereUpdatesKeepThem) {
  dist::SelfCommunicator comm;
  const std::string recipe =
      recipe_of({"!GradualKSModifier {params: [a], init_sparsity: 0.5, final_sparsity: 0.5, "
                 "start_epoch: 0, end_epoch: 1, update_frequency: 1}",
                 "!EpochRangeModifier {start_epoch: 0, end_epoch: 30}"});
  Training run(recipe, /*updates_keep_zeros=*/true);  // which is not so: its updates write all
  run.go_on_until(100, comm);
  EXPECT_EQ(run.num_zeros(0), 0) << "nobody looked";
  run.go_on_until(101, comm);
  EXPECT_EQ(run.num_zeros(0), 50);
  EXPECT_EQ(run.manager.num_revived(), 100);
}

TEST(Manager, SummariesTellWhatEveryModifierDoes) {
  dist::SelfCommunicator comm;
  Training run(short_run());
  run.go_on_until(24, comm);
  std::map<std::string, double> values;
  for (const Summary& one : run.manager.summaries(23)) values[one.name] = one.value;
  EXPECT_DOUBLE_EQ(values.at("learning_rate/weights"), 0.05);
  EXPECT_DOUBLE_EQ(values.at("learning_rate/other"), 0.05);
  EXPECT_DOUBLE_EQ(values.at("2:LearningRateModifier/learning_rate/weights"), 0.05);
  EXPECT_DOUBLE_EQ(values.at("3:GradualKSModifier/target_sparsity"), 0.8);
  EXPECT_DOUBLE_EQ(values.at("3:GradualKSModifier/a.weight/sparsity"), 0.8);
  EXPECT_DOUBLE_EQ(values.at("sparsity"), 0.4);
  EXPECT_EQ(values.at("mask_updates"), 5);
  EXPECT_EQ(run.manager.step_info(23).learning_rates, (std::array<double, 2>{0.05, 0.05}));
  EXPECT_EQ(run.manager.step_info(23).summaries.size(), values.size());
  EXPECT_EQ(values.at("revived_weights"), run.manager.num_revived());
  ASSERT_EQ(run.manager.layer_sparsities(true).size(), 1U);
  EXPECT_EQ(run.manager.layer_sparsities(true)[0].name, "a.weight");
  EXPECT_DOUBLE_EQ(run.manager.layer_sparsities(true)[0].value, 0.8);
}

TEST(Manager, SummariesOfEachParameterUnlessTheRecipeForbidsThem) {
  dist::SelfCommunicator comm;
  Training run(recipe_of(
      {"!EpochRangeModifier {start_epoch: 0, end_epoch: 6}", "!ConstantKSModifier {params: [b]}",
       "!TrainableParamsModifier {params: [a.bias], trainable: false, start_epoch: 2}",
       "!SetParamModifier {params: [a.bias], val: 0.25, start_epoch: 1}",
       "!GradualKSModifier {params: [a], init_sparsity: 0.5, final_sparsity: 0.5, start_epoch: 0, "
       "end_epoch: 1, update_frequency: 1, log_types: none}"}));
  const auto names_at = [&](int64_t step) {
    std::map<std::string, double> values;
    for (const Summary& one : run.manager.summaries(step))
      if (std::isdigit(static_cast<unsigned char>(one.name[0])) != 0) values[one.name] = one.value;
    return values;
  };
  run.params[2].tensor.detach().slice(0, 0, 5).zero_();  // a quarter of b
  run.step(comm);
  using Values = std::map<std::string, double>;
  EXPECT_EQ(names_at(0), (Values{{"2:ConstantKSModifier/b.weight/sparsity", 0.25},
                                 {"3:TrainableParamsModifier/a.bias/trainable", 1},
                                 {"5:GradualKSModifier/target_sparsity", 0.5}}));
  run.go_on_until(10, comm);
  EXPECT_EQ(names_at(9), (Values{{"2:ConstantKSModifier/b.weight/sparsity", 0.25},
                                 {"3:TrainableParamsModifier/a.bias/trainable", 0},
                                 {"4:SetParamModifier/a.bias/value", 0.25},
                                 {"5:GradualKSModifier/target_sparsity", 0.5}}));
}

TEST(Manager, AValueThatTheParametersTypeCannotHoldIsAFaultOfTheRecipe) {
  const auto faults_of_value = [](at::ScalarType type, const std::string& value) {
    ScheduledModifierManager manager(good_recipe(
        recipe_of({"!SetParamModifier {params: [c], val: " + value + ", start_epoch: 5}"})));
    Diagnostics faults;
    manager.attach({param("c.weight", at::ones({2, 2}, type), true)}, {.steps_per_epoch = 4},
                   &faults);
    return brief(faults);
  };
  EXPECT_EQ(faults_of_value(at::kFloat, "3.4e38"), "");
  EXPECT_EQ(faults_of_value(at::kHalf, "65504"), "");
  EXPECT_EQ(faults_of_value(at::kHalf, "-70000"),
            "3:5: SetParamModifier sets 'c.weight' to -70000, and the largest Half is 65504");
}

/// A model of one layer, of whose four weights this many are zero.
std::vector<std::string> unkept_zeros(int num_zeros, const std::vector<std::string>& items) {
  ScheduledModifierManager manager(good_recipe(recipe_of(items)));
  at::Tensor values = at::ones({2, 2});
  values.view(-1).slice(0, 0, num_zeros).zero_();
  Diagnostics faults;
  manager.attach({param("c.weight", values, true)},
                 {.steps_per_epoch = 4, .layers = {{.name = "c", .weight_param = 0}}}, &faults);
  EXPECT_TRUE(faults.empty()) << faults.text();
  return manager.unkept_zeros();
}

TEST(Manager, WarnsOfZerosThatNobodyKeepsWhileItQuantizes) {
  const std::string quantize = "!QuantizationModifier {start_epoch: 1}";
  EXPECT_THAT(unkept_zeros(3, {quantize}),
              ElementsAre("r.yaml:3: QuantizationModifier: it quantizes pruned weights whose zeros "
                          "no modifier keeps, so training makes them nonzero again: c.weight (75 "
                          "%); keep them with a ConstantKSModifier listed before it"));
  EXPECT_THAT(unkept_zeros(0, {quantize}), ElementsAre());
  EXPECT_THAT(unkept_zeros(4, {quantize}), ElementsAre());  // not trained yet: no pattern
  EXPECT_THAT(unkept_zeros(3, {"!ConstantKSModifier {params: __ALL__}", quantize}), ElementsAre());
}

TEST(Manager, WarnsOnceOfALayerThatOneThresholdTakesWhole) {
  dist::SelfCommunicator comm;
  const auto num_warnings_of = [&](const char* tag) {
    ScheduledModifierManager manager(good_recipe(recipe_of({fmt::format(
        "!{} {{params: __ALL_PRUNABLE__, init_sparsity: 0.5, final_sparsity: 0.75, start_epoch: 0, "
        "end_epoch: 2, update_frequency: 1}}",
        tag)})));
    const ParamTable params{param("small.weight", 0.01 * at::ones({2, 4}), true),
                            param("large.weight", at::ones({4, 4}), true)};
    Diagnostics faults;
    manager.attach(params, {.steps_per_epoch = 1}, &faults);
    EXPECT_TRUE(faults.empty()) << faults.text();
    const int64_t num_before = log::num_lines(log::Level::kWarning);
    for (int64_t step = 0; step < 2; ++step) (void)manager.apply_due(step, comm);
    manager.finalize(2, comm);
    return log::num_lines(log::Level::kWarning) - num_before;
  };
  EXPECT_EQ(num_warnings_of("GlobalMagnitudePruningModifier"), 1);
  EXPECT_EQ(num_warnings_of("GradualKSModifier"), 0);
}

TEST(Manager, AnEndWithoutClosingActionsGivesAWarning) {
  dist::SelfCommunicator comm;
  const auto num_warnings = [&](bool closes) {
    const int64_t num_before = log::num_lines(log::Level::kWarning);
    {
      Training run(short_run());
      run.go_on_until(24, comm);
      if (closes) (void)run.manager.apply_closing(24, comm);
    }
    return log::num_lines(log::Level::kWarning) - num_before;
  };
  EXPECT_EQ(num_warnings(false), num_warnings(true) + 1);
}

TEST(Manager, FinalizeLeavesTheLayerHookWithItsRangesAsTheyAre) {
  dist::SelfCommunicator comm;
  const ParamTable params{param("c.weight", at::ones({2, 2}), true)};
  ScheduledModifierManager manager(
      good_recipe(recipe_of({"!QuantizationModifier {start_epoch: 0}",
                             "!EpochRangeModifier {start_epoch: 0, end_epoch: 1}"})));
  Diagnostics faults;
  manager.attach(params, {.steps_per_epoch = 2, .layers = {{.name = "c", .weight_param = 0}}},
                 &faults);
  const auto forward = [&](float largest) {
    return manager.layer_hook()->input(0, at::tensor({0.0F, largest}));
  };
  for (int64_t step = 0; step < 2; ++step) {
    (void)manager.apply_due(step, comm);
    (void)forward(1.0F);
    manager.end_step(true, comm);
  }
  manager.finalize(2, comm);
  ASSERT_NE(manager.layer_hook(), nullptr);
  const auto range_max = [&] { return manager.quantizer()->view(0).input_range.max; };
  const float before = range_max();
  EXPECT_NEAR(forward(100.0F)[1].item<float>(), before, 1e-5);  // still rounded, cut to the range
  EXPECT_EQ(range_max(), before);
  EXPECT_EQ(manager.quantizer()->num_quantized(), 1);
}

TEST(Manager, AStoppedRunAppliesNothingThatIsDueLater) {
  dist::SelfCommunicator comm;
  Training run(short_run());
  run.go_on_until(16, comm);  // step 16 is due for the closing sparsity
  const int64_t num_zeros = run.num_zeros(0);
  run.manager.finalize_stopped();
  EXPECT_EQ(run.num_zeros(0), num_zeros);
  EXPECT_TRUE(run.manager.state().empty());
  EXPECT_THROW(run.manager.apply_due(16, comm), StateError);
}

TEST(Manager, FaultsOfTheModelHaveTheRecipesPlace) {
  ScheduledModifierManager manager(good_recipe(short_run()));
  Diagnostics faults;
  manager.attach({param("c.weight", at::ones({2, 2}), true)}, {.steps_per_epoch = 4}, &faults);
  EXPECT_EQ(brief(faults), "5:34: the model has no layer or parameter 'a'; available: c");
}

TEST(Manager, AShapeThatAMaskDoesNotFitIsAFaultOfTheRecipe) {
  ScheduledModifierManager manager(good_recipe(recipe_of(
      {"!GradualKSModifier {params: [c], init_sparsity: 0.1, final_sparsity: 0.5, start_epoch: 0, "
       "end_epoch: 1, update_frequency: 1, mask_type: '2:4'}"})));
  Diagnostics faults;
  manager.attach({param("c.weight", at::ones({4, 6}), true)}, {.steps_per_epoch = 4}, &faults);
  ASSERT_EQ(faults.list().size(), 1U) << faults.text();
  EXPECT_EQ(faults.list()[0].line, 3);
  EXPECT_THAT(faults.list()[0].message, HasSubstr("c.weight"));
  EXPECT_THAT(faults.list()[0].message, HasSubstr("[4, 6]"));
}

TEST(Manager, FromYamlThrowsAllFaultsAtOnce) {
  try {
    ScheduledModifierManager::from_yaml(LOCKSTEP_SOURCE_DIR "/CMakePresets.json");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_THAT(error.what(), HasSubstr("unknown key 'configurePresets'"));
  }
  EXPECT_EQ(
      ScheduledModifierManager::from_yaml(LOCKSTEP_SOURCE_DIR "/configs/recipes/digits_prune.yaml")
          .recipe()
          .modifiers()
          .size(),
      3U);
}

TEST(Manager, AnEmptyRecipeKeepsTheOptimizersRate) {
  dist::SelfCommunicator comm;
  const ParamTable params{param("c.weight", at::ones({2, 2}), true)};
  ScheduledModifierManager manager{Recipe()};
  Diagnostics faults;
  manager.attach(params, {.steps_per_epoch = 4, .base_learning_rate = 0.25}, &faults);
  (void)manager.apply_due(0, comm);
  EXPECT_DOUBLE_EQ(manager.learning_rate_at(0), 0.25);
  EXPECT_TRUE(manager.state().empty());
  EXPECT_DOUBLE_EQ(manager.sparsity(), 0);
}

}  // namespace manager_face_test
}  // namespace lockstep::recal
