// What a program sees of the manager: order of calls, summaries, faults.
#include <map>

#include <gmock/gmock.h>

#include "base/error.h"
#include "dist/self_communicator.h"
#include "small_training.h"

namespace lockstep::recal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Manager, UseInTheWrongOrderIsRefused) {
  dist::SelfCommunicator comm;
  ScheduledModifierManager manager(good_recipe(short_run()));
  Faults faults;
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
  EXPECT_DOUBLE_EQ(values.at("target_sparsity/3:GradualKSModifier"), 0.8);
  EXPECT_DOUBLE_EQ(values.at("sparsity"), 0.4);
  EXPECT_EQ(values.at("mask_updates"), 5);
  EXPECT_EQ(run.manager.extras(23).learning_rates, (std::array<double, 2>{0.05, 0.05}));
  EXPECT_EQ(run.manager.extras(23).summaries.size(), values.size());
  EXPECT_EQ(values.at("revived_weights"), run.manager.num_revived());
  ASSERT_EQ(run.manager.layer_sparsities(true).size(), 1U);
  EXPECT_EQ(run.manager.layer_sparsities(true)[0].name, "a.weight");
  EXPECT_DOUBLE_EQ(run.manager.layer_sparsities(true)[0].value, 0.8);
}

TEST(Manager, FaultsOfTheModelHaveTheRecipesPlace) {
  ScheduledModifierManager manager(good_recipe(short_run()));
  Faults faults;
  manager.attach({param("c.weight", at::ones({2, 2}), true)}, {.steps_per_epoch = 4}, &faults);
  EXPECT_EQ(brief(faults), "5:34: the model has no layer or parameter 'a'; there are c");
}

TEST(Manager, AShapeThatAMaskDoesNotFitIsAFaultOfTheRecipe) {
  ScheduledModifierManager manager(good_recipe(recipe_of(
      {"!GradualKSModifier {params: [c], init_sparsity: 0.1, final_sparsity: 0.5, start_epoch: 0, "
       "end_epoch: 1, update_frequency: 1, mask_type: '2:4'}"})));
  Faults faults;
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
  Faults faults;
  manager.attach(params, {.steps_per_epoch = 4, .base_learning_rate = 0.25}, &faults);
  (void)manager.apply_due(0, comm);
  EXPECT_DOUBLE_EQ(manager.learning_rate_at(0), 0.25);
  EXPECT_TRUE(manager.state().empty());
  EXPECT_DOUBLE_EQ(manager.sparsity(), 0);
}

}  // namespace
}  // namespace lockstep::recal
