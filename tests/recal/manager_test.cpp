#include <map>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include "base/error.h"
#include "base/random.h"
#include "dist/self_communicator.h"
#include "recal/mask_tensors.h"
#include "recal/scheduled_modifier_manager.h"
#include "recipes.h"
#include "tests/support/thread_world.h"

namespace lockstep::recal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kStepsPerEpoch = 4;

/// Prunes over epochs 1 to 4 (steps 4 to 16), 24 steps in all; two rates.
std::string short_run() {
  return recipe_of({"!EpochRangeModifier {start_epoch: 0, end_epoch: 6}",
                    "!LearningRateModifier {start_epoch: 0, end_epoch: 6, lr_class: MultiStepLR, "
                    "lr_kwargs: {gamma: 0.5, milestones: [2.5]}}",
                    "!GradualKSModifier {params: [a], init_sparsity: 0.1, final_sparsity: 0.8, "
                    "start_epoch: 1, end_epoch: 4, update_frequency: 0.75}"});
}

at::Tensor random_values(int64_t seed, at::IntArrayRef sizes) {
  const CounterRandom random{seed};
  const at::Tensor values = at::empty(sizes);
  for (int64_t i = 0; i < values.numel(); ++i)
    values.data_ptr<float>()[i] =
        static_cast<float>(random.uniform(static_cast<uint64_t>(i)) - 0.5);
  return values;
}

Param param(const std::string& name, const at::Tensor& values, bool prunable) {
  at::Tensor leaf = values.clone();
  leaf.requires_grad_(true);
  return {name, leaf, prunable, prunable};
}

/// One rank of a small training: weights are pushed about by numbers that depend on step and index
/// only.
struct Training {
  explicit Training(const std::string& recipe)
      : params{param("a.weight", random_values(1, {10, 10}), true),
               param("a.bias", random_values(2, {10}), false),
               param("b.weight", random_values(3, {20, 5}), true)},
        manager(good_recipe(recipe)) {
    Faults faults;
    manager.attach(params, {.steps_per_epoch = kStepsPerEpoch, .base_learning_rate = 0.1}, &faults);
    EXPECT_TRUE(faults.empty()) << faults.text();
  }

  void step(dist::Communicator& comm) {
    last = manager.apply_due(now, comm);
    for (size_t i = 0; i < params.size(); ++i) {
      const at::Tensor push =
          random_values(100 * now + static_cast<int64_t>(i), params[i].tensor.sizes());
      params[i].tensor.detach().sub_(push, manager.learning_rate_at(now));
    }
    manager.end_step(true, comm);
    ++now;
  }
  void go_on_until(int64_t end, dist::Communicator& comm) {
    while (now < end) step(comm);
  }
  int64_t num_zeros(size_t index) const {
    return params[index].tensor.numel() - params[index].tensor.count_nonzero().item<int64_t>();
  }

  ParamTable params;
  ScheduledModifierManager manager;
  int64_t now = 0;
  Applied last;
};

/// Copies what a checkpoint holds: weights and listed state.
void copy_state(Training* from, Training* to) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < from->params.size(); ++i)
    to->params[i].tensor.copy_(from->params[i].tensor);
  const StateList source = from->manager.state();
  const StateList target = to->manager.state();
  ASSERT_EQ(source.size(), target.size());
  for (size_t i = 0; i < source.size(); ++i) target[i].tensor.copy_(source[i].tensor);
  to->now = from->now;
}

void expect_same(const Training& a, const Training& b) {
  for (size_t i = 0; i < a.params.size(); ++i)
    EXPECT_TRUE(at::equal(a.params[i].tensor, b.params[i].tensor)) << a.params[i].name;
  for (size_t i = 0; i < a.manager.masks().all().size(); ++i)
    EXPECT_TRUE(
        at::equal(a.manager.masks().all()[i].kept_bits, b.manager.masks().all()[i].kept_bits));
}

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
  const Applied applied = run.manager.apply_closing(8, comm);
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
  const Applied applied = run.manager.apply_due(4, comm);
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
