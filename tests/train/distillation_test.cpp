// Training with a teacher: the loss, its gradients, and the ways to run a step.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>

#include <cmath>

#include "base/error.h"
#include "support/thread_world.h"
#include "tests/train/small_run.h"

namespace lockstep::train {
namespace distillation_test {

using tests::SmallRun;
using tests::SmallRunOptions;

std::string recipe_of(const std::string& distillation, const std::string& more = "") {
  return "version: 1.0.0\nmodifiers:\n  - !EpochRangeModifier {start_epoch: 0, end_epoch: 9}\n  "
         "- " +
         distillation + "\n" + more;
}

SmallRunOptions options_of(const std::string& recipe) {
  SmallRunOptions options;
  options.num_samples = 32;
  options.global_batch = 16;
  options.distills = true;
  options.recipe = recipe;
  return options;
}

constexpr const char* kDistil = "!DistillationModifier {hardness: 0.75, temperature: 3.0}";

Loss loss_of(data::TargetKind kind, int64_t num_classes) {
  return {"auto", {}, {.input_shape = {3}, .target_kind = kind, .num_classes = num_classes}};
}

/// Sum of p (log p - log q) of softmax(x / T), written out.
double divergence(const std::vector<double>& logits, const std::vector<double>& teacher, double t) {
  double sum_q = 0, sum_p = 0, result = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    sum_q += std::exp(logits[i] / t);
    sum_p += std::exp(teacher[i] / t);
  }
  for (size_t i = 0; i < logits.size(); ++i) {
    const double p = std::exp(teacher[i] / t) / sum_p;
    result += p * (std::log(p) - std::log(std::exp(logits[i] / t) / sum_q));
  }
  return result * t * t;
}

TEST(DistilledSum, IsTheDivergenceByDefinition) {
  const Loss loss = loss_of(data::TargetKind::kClass, 3);
  const at::Tensor logits = at::tensor({0.5, -1.0, 2.0, 0.0, 1.0, 3.0}).view({2, 3}).to(at::kFloat);
  const at::Tensor teacher =
      at::tensor({1.5, 0.0, -2.0, 1.0, 1.0, 1.0}).view({2, 3}).to(at::kFloat);
  const at::Tensor targets = at::tensor({2, 0}, at::kLong);
  EXPECT_NEAR(loss.distilled_sum(logits, teacher, targets, 3).item<double>(),
              divergence({0.5, -1, 2}, {1.5, 0, -2}, 3) + divergence({0, 1, 3}, {1, 1, 1}, 3),
              1e-5);
  EXPECT_NEAR(loss.distilled_sum(logits, logits, targets, 3).item<double>(), 0, 1e-6);
}

TEST(DistilledSum, OfTokensIsTheirMeanWithoutIgnoredOnes) {
  const Loss loss("auto", {},
                  {.input_shape = {2},
                   .target_kind = data::TargetKind::kTokens,
                   .num_classes = 2,
                   .may_ignore = true});
  const at::Tensor logits = at::tensor({0.0, 1.0, 5.0, 0.0}).view({1, 2, 2}).to(at::kFloat);
  const at::Tensor teacher = at::zeros({1, 2, 2});
  const at::Tensor targets = at::tensor({1, -100}, at::kLong).view({1, 2});
  EXPECT_NEAR(loss.distilled_sum(logits, teacher, targets, 1).item<double>(),
              divergence({0, 1}, {0, 0}, 1) / 2, 1e-6);
}

TEST(DistilledSum, AnotherShapeIsRefusedWithBoth) {
  const Loss loss = loss_of(data::TargetKind::kClass, 3);
  try {
    (void)loss.distilled_sum(at::zeros({2, 3}), at::zeros({2, 5}), at::zeros({2}, at::kLong), 1);
    FAIL();
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kConfig);
    EXPECT_THAT(fault.what(), ::testing::HasSubstr("returns [2, 3] and its teacher [2, 5]"));
  }
  EXPECT_THROW(loss_of(data::TargetKind::kValues, 2).require_distillable(), Error);
}

/// The step's loss and weights are those of autograd over the whole batch.
TEST(Distillation, AStepFollowsTheMixedLoss) {
  dist::SelfCommunicator comm;
  SmallRun run(comm, options_of(recipe_of(kDistil)));
  data::Sampler sampler = run.sampler;
  const data::Samples samples = run.dataset.get(sampler.next().indices, 0);
  const at::Tensor logits = run.model->forward(samples.inputs_BX);
  const at::Tensor teacher = run.teacher->outputs({.tensors = {samples.inputs_BX}});
  EXPECT_FALSE(teacher.requires_grad());
  const at::Tensor wanted =
      (run.loss.sum(logits, samples.targets_BY) * 0.25 +
       run.loss.distilled_sum(logits, teacher, samples.targets_BY, 3) * 0.75) /
      16;
  EXPECT_NEAR(run.step().loss, wanted.item<double>(), 1e-6);
}

class DistillationOnRanks : public ::testing::TestWithParam<int> {};

/// Elastic: equal bits in every world, with masks, frozen layers and micro-batches.
TEST_P(DistillationOnRanks, GivesTheSameBits) {
  SmallRunOptions options = options_of(recipe_of(
      "!DistillationModifier {hardness: 0.75, start_step: 1, end_step: 9}",
      "  - !GradualKSModifier {params: __ALL__, init_sparsity: 0.3, final_sparsity: 0.8, "
      "start_step: 2, end_step: 8, update_frequency_steps: 2}\n"
      "  - !TrainableParamsModifier {params: [layers.0], trainable: false, start_step: 4, "
      "end_step: 6}\n"));
  options.elastic = true;
  options.train.replicas_to_aggregate = 2;
  for (const bool is_copy : {false, true}) {
    options.teacher_is_copy = is_copy;
    dist::SelfCommunicator alone;
    SmallRun whole(alone, options);
    for (int i = 0; i < 12; ++i) whole.step();
    const std::string wanted = tests::bits_of(whole.state());
    tests::run_ranks(GetParam(), [&](dist::Communicator& comm) {
      SmallRun run(comm, options);
      for (int i = 0; i < 12; ++i) run.step();
      EXPECT_EQ(tests::bits_of(run.state()), wanted);
    });
  }
}

TEST_P(DistillationOnRanks, WorksWithLocalStepsAndBf16) {
  SmallRunOptions options = options_of(recipe_of("!DistillationModifier {start_step: 3}"));
  options.sync.sync_replicas = false;
  options.sync.sync_every = 4;
  options.teacher_is_copy = true;
  options.train.precision = "bf16";
  tests::run_ranks(GetParam(), [&](dist::Communicator& comm) {
    SmallRun run(comm, options);
    for (int i = 0; i < 8; ++i) run.step();
    run.require_equal_ranks();
    std::vector<dist::NamedTensor> named;
    for (const StateEntry& entry : run.teacher->state()) named.push_back({entry.key, entry.tensor});
    dist::require_equal_replicas(comm, "the teacher", named);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, DistillationOnRanks, ::testing::Values(2, 4));

TEST(Distillation, ACopyIsTakenWhereItBegins) {
  dist::SelfCommunicator comm;
  SmallRunOptions options =
      options_of(recipe_of("!DistillationModifier {start_step: 2, hardness: 1.0}"));
  options.teacher_is_copy = true;
  SmallRun run(comm, options);
  run.step();
  run.step();
  std::vector<at::Tensor> weights;
  for (const Param& param : run.model->params()) weights.push_back(param.tensor.detach().clone());
  EXPECT_NEAR(run.step().loss, 0, 1e-6);  // of itself
  run.step();
  for (size_t i = 0; i < weights.size(); ++i)
    EXPECT_TRUE(at::equal(run.teacher->network().params()[i].tensor, weights[i]));
}

}  // namespace distillation_test
}  // namespace lockstep::train
