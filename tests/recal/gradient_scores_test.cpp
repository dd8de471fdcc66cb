// Pruning by statistics of gradients: which steps count, ranks, and resumed runs.
#include "recal/gradient_scores.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <map>

#include "base/error.h"
#include "tests/recal/modifiers/timeline_events.h"
#include "tests/recal/small_training.h"
#include "tests/support/thread_world.h"

namespace lockstep::recal {
namespace gradient_scores_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string pruning(const std::string& tag, const std::string& more = "") {
  return "!" + tag +
         " {params: __ALL__, init_sparsity: 0.2, final_sparsity: 0.8, start_epoch: 1, end_epoch: "
         "4, "
         "update_frequency: 1" +
         (more.empty() ? "" : ", ") + more + "}";
}

std::string recipe(const std::string& item) {
  return recipe_of({item, "!EpochRangeModifier {start_epoch: 0, end_epoch: 5}"});
}

const std::string kSecondOrder =
    pruning("OBSPruningModifier", "num_grads: 3, fisher_block_size: 4, damp: 0.01");

/// One rank whose gradients are numbers of step and parameter, and whose updates follow them.
struct GradientTraining : Training {
  GradientTraining(const std::string& text, dist::Communicator& comm)
      : Training(recipe_of({"!EpochRangeModifier {start_epoch: 0, end_epoch: 1}"})),
        pruner(good_recipe(text)) {
    Diagnostics faults;
    pruner.attach(params,
                  {.steps_per_epoch = kStepsPerEpoch,
                   .base_learning_rate = 0.1,
                   .rank = comm.rank(),
                   .world_size = comm.world_size()},
                  &faults);
    EXPECT_TRUE(faults.empty()) << faults.text();
  }

  /// num_frozen: of the first parameters, which get no gradient.
  void go_on(int64_t end, dist::Communicator& comm, size_t num_frozen = 0) {
    for (; now < end; ++now) {
      (void)pruner.apply_due(now, comm);
      for (size_t i = num_frozen; i < params.size(); ++i) {
        params[i].tensor.mutable_grad() =
            random_values(100 * now + static_cast<int64_t>(i), params[i].tensor.sizes());
        params[i].tensor.detach().sub_(params[i].tensor.grad(), 0.1);
      }
      pruner.end_step(true, comm);
    }
  }
  at::Tensor weight() const { return params[0].tensor.detach(); }

  ScheduledModifierManager pruner;
};

class PruningByGradients : public ::testing::TestWithParam<std::string> {};

TEST_P(PruningByGradients, RanksAgreeAndDivideTheWork) {
  dist::SelfCommunicator alone;
  GradientTraining whole(recipe(GetParam()), alone);
  whole.go_on(20, alone);
  EXPECT_DOUBLE_EQ(whole.pruner.sparsity(), 0.8);
  for (const int world_size : {2, 4})
    tests::run_ranks(world_size, [&](dist::Communicator& comm) {
      GradientTraining run(recipe(GetParam()), comm);
      run.go_on(20, comm);
      for (size_t i = 0; i < run.params.size(); ++i)
        EXPECT_TRUE(at::equal(run.params[i].tensor, whole.params[i].tensor)) << run.params[i].name;
    });
}

/// Stopped within a window of gradients, at its ends, and where masks are due.
TEST_P(PruningByGradients, AResumedRunTakesTheSamePath) {
  dist::SelfCommunicator alone;
  GradientTraining whole(recipe(GetParam()), alone);
  whole.go_on(20, alone);
  for (int64_t stop = 0; stop < 18; ++stop) {
    GradientTraining first(recipe(GetParam()), alone), second(recipe(GetParam()), alone);
    first.go_on(stop, alone);
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < first.params.size(); ++i)
      second.params[i].tensor.copy_(first.params[i].tensor);
    std::map<std::string, at::Tensor> saved;
    for (const StateEntry& entry : first.pruner.state()) saved[entry.key] = entry.tensor;
    for (const StateEntry& entry : second.pruner.state())
      if (saved.contains(entry.key))
        entry.tensor.copy_(saved[entry.key]);
      else
        entry.tensor.fill_(*entry.value_if_missing);
    second.now = stop;
    second.pruner.restored(alone);
    second.go_on(20, alone);
    for (size_t i = 0; i < whole.params.size(); ++i)
      EXPECT_TRUE(at::equal(second.params[i].tensor, whole.params[i].tensor)) << "stop at " << stop;
  }
}

INSTANTIATE_TEST_SUITE_P(Modifiers, PruningByGradients,
                         ::testing::Values(kSecondOrder,
                                           pruning("MFACPruningModifier", "num_grads: 3"),
                                           pruning("MovementPruningModifier"),
                                           pruning("OBSPruningModifier",
                                                   "num_grads: 2, fisher_block_size: 5, mask_type: "
                                                   "[1, 5], global_sparsity: false")));

/// A frozen parameter is pruned by magnitude. With one threshold for all, so are the others, and
/// gradients of an earlier window are forgotten all the same.
TEST_P(PruningByGradients, AFrozenParameterIsPrunedByMagnitude) {
  dist::SelfCommunicator alone;
  GradientTraining run(recipe(GetParam()), alone);
  const at::Tensor before = run.weight().clone();
  run.go_on(20, alone, /*num_frozen=*/1);
  EXPECT_DOUBLE_EQ(run.pruner.sparsity(), 0.8);
  tests::run_ranks(2, [&](dist::Communicator& comm) {
    GradientTraining other(recipe(GetParam()), comm);
    other.go_on(20, comm, /*num_frozen=*/1);
    for (size_t i = 0; i < run.params.size(); ++i)
      EXPECT_TRUE(at::equal(other.params[i].tensor, run.params[i].tensor)) << run.params[i].name;
  });
  const bool is_unstructured = GetParam().find("mask_type") == std::string::npos;
  const bool is_global = GetParam().find("OBS") != std::string::npos && is_unstructured;
  if (is_global || !is_unstructured) return;
  const at::Tensor kept = run.weight().ne(0);
  EXPECT_GE(before.abs().masked_select(kept).min().item<float>(),
            before.abs().masked_select(kept.logical_not()).max().item<float>());
  EXPECT_TRUE(at::equal(run.weight().masked_select(kept), before.masked_select(kept)));
}

TEST(GradientScores, TheLastStepsBeforeAnUpdateCount) {
  dist::SelfCommunicator alone;
  GradientTraining run(recipe(kSecondOrder), alone);
  std::vector<int64_t> counts;
  for (int64_t step = 1; step <= 17; ++step) {
    run.go_on(step, alone);
    int64_t count = 0;
    for (const StateEntry& entry : run.pruner.state())
      if (entry.key == "_lockstep/pruning/a/weight/0/num_gradients")
        count = entry.tensor.item<int64_t>();
    counts.push_back(count);
  }
  // Updates at 4, 8, 12 and 16; a save outside the windows holds no statistics.
  EXPECT_THAT(counts, ElementsAre(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0));
}

TEST(GradientScores, ASkippedUpdateDoesNotCount) {
  dist::SelfCommunicator alone;
  GradientTraining run(recipe(pruning("MovementPruningModifier")), alone);
  (void)run.pruner.apply_due(0, alone);
  for (const Param& param : run.params)
    param.tensor.mutable_grad() = at::full(param.tensor.sizes(), NAN);
  run.pruner.end_step(false, alone);
  for (const StateEntry& entry : run.pruner.state())
    EXPECT_FALSE(entry.key.starts_with("_lockstep/pruning/")) << entry.key;
}

/// Weights that move away from 0 stay, however small they are.
TEST(GradientScores, MovementPrunesWhatShrinks) {
  dist::SelfCommunicator alone;
  GradientTraining run(
      recipe("!MovementPruningModifier {params: [a], init_sparsity: 0.5, final_sparsity: 0.5, "
             "start_epoch: 1, end_epoch: 2, update_frequency: 1}"),
      alone);
  const at::Tensor sum = at::zeros({10, 10});
  for (int64_t step = 0; step < 4; ++step) {
    const at::Tensor before = run.weight().clone();
    run.go_on(step + 1, alone);
    sum.sub_(before * run.params[0].tensor.grad());
  }
  run.go_on(5, alone);
  const at::Tensor kept = kept_flags(run.pruner.masks().of(0).kept_bits, {100});
  const at::Tensor order = sum.flatten().argsort(/*stable=*/true, -1, false);
  EXPECT_EQ(kept.index_select(0, order.narrow(0, 0, 50)).sum().item<int64_t>(), 0);
  EXPECT_EQ(kept.index_select(0, order.narrow(0, 50, 50)).sum().item<int64_t>(), 50);
}

TEST(GradientScores, NotesAndRefusals) {
  const auto notes = [](const std::string& item) {
    return compiled(recipe_of({item}), 10).notes();
  };
  EXPECT_THAT(notes(kSecondOrder),
              ::testing::Contains(HasSubstr("the mean gradients of up to 3 steps before it")));
  EXPECT_THAT(
      notes("!OBSPruningModifier {params: __ALL__, init_sparsity: 0.2, final_sparsity: 0.8, "
            "start_epoch: 0, end_epoch: 4, update_frequency: 1}"),
      ::testing::Contains(HasSubstr("the update at step 0 has no gradients before it")));
  EXPECT_THAT(faults_of(recipe_of({pruning("OBSPruningModifier", "mask_type: filter")})),
              HasSubstr("second-order pruning is unstructured, N:M or block4"));
  EXPECT_THAT(faults_of(recipe_of(
                  {pruning("OBSPruningModifier", "mask_type: block4, fisher_block_size: 50")})),
              HasSubstr("is 50, it must be a multiple of 4 for mask_type block4"));
  EXPECT_THAT(faults_of(recipe_of({pruning("OBSPruningModifier", "num_recomputations: 2")})),
              HasSubstr("num_recomputations"));
  EXPECT_THAT(
      faults_of(recipe_of({pruning("MFACPruningModifier", "use_gradient_buffering: false")})),
      HasSubstr("may only be true"));
  EXPECT_THAT(faults_of(recipe_of({pruning("MovementPruningModifier", "mask_type: block4")})),
              HasSubstr("movement prunes unstructured or N:M"));
}

TEST(GradientScores, DefaultsAreThoseOfSparseML) {
  const auto score = [](const std::string& tag) {
    const ParamSet set = compiled(recipe_of({pruning(tag)}), 10).param_sets()[0];
    return set.score.text() + (set.mask_rule.global ? " global" : "");
  };
  EXPECT_EQ(score("OBSPruningModifier"), "fisher 1024 1e-07 50 global");
  EXPECT_EQ(score("MFACPruningModifier"), "fisher 64 1e-05 2000");
  EXPECT_EQ(score("MovementPruningModifier"), "movement");
  EXPECT_EQ(score("GMPruningModifier"), "magnitude");
}

/// A weight [4, 8, 3, 3] has no four neighbouring inputs in memory.
TEST(GradientScores, BlocksOfAConvolutionAreRefused) {
  ParamTable params{param("conv.weight", random_values(1, {4, 8, 3, 3}), true)};
  ScheduledModifierManager manager(good_recipe(
      recipe_of({pruning("OBSPruningModifier", "mask_type: block4, fisher_block_size: 8")})));
  Diagnostics faults;
  manager.attach(params, {.steps_per_epoch = 4}, &faults);
  EXPECT_THAT(brief(faults),
              HasSubstr("conv.weight [4, 8, 3, 3] cannot be pruned by Fisher blocks"));
}

TEST(GradientScores, MoreMemoryThanTheHostHasIsRefused) {
  const ParamTable params{{"a.weight", at::empty({1 << 15, 1 << 15}), true, true}};
  ScheduledModifierManager manager(
      good_recipe(recipe_of({pruning("OBSPruningModifier",
                                     "num_grads: 100000, fisher_block_size: 10000, "
                                     "global_sparsity: false")})));
  Diagnostics faults;
  manager.attach(params, {.steps_per_epoch = 4}, &faults);
  EXPECT_THAT(brief(faults), HasSubstr("statistics for second-order pruning need 40"));
}

}  // namespace gradient_scores_test
}  // namespace lockstep::recal
