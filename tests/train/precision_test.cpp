// Mixed precision, the loss scale and clipping inside the training step.
#include <cmath>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/networks/model_table.h"
#include "model/networks/small_networks.h"
#include "support/thread_world.h"
#include "tests/train/small_run.h"
#include "train/step/training_pass.h"

namespace lockstep::train {
namespace precision_test {

using tests::SmallRun;
using tests::SmallRunOptions;

TEST(LossScale, FollowsTheVerdicts) {
  LossScale scale({.initial_exponent = 2, .growth_steps = 3}, true);
  const auto after = [&](bool finite, bool losses_finite = true) {
    const bool fell = scale.end_step(losses_finite, finite);
    return std::make_pair(scale.value(), fell);
  };
  const std::vector<std::pair<bool, std::pair<int64_t, bool>>> trace{
      {true, {4, false}},  {true, {4, false}}, {true, {8, false}},  // three in a row
      {true, {8, false}},  {true, {8, false}}, {false, {4, true}},  // the count restarts
      {true, {4, false}},  {true, {4, false}}, {true, {8, false}},  //
      {false, {4, true}},  {false, {2, true}}, {false, {1, true}},  //
      {false, {1, false}}, {true, {1, false}}};                     // it cannot fall further
  for (const auto& [finite, expected] : trace) EXPECT_EQ(after(finite), expected);
  EXPECT_EQ(after(false, /*losses_finite=*/false), std::make_pair(int64_t{1}, false));
}

TEST(LossScale, EndsAtItsLargest) {
  LossScale scale({.initial_exponent = LossScale::kMaxExponent, .growth_steps = 1}, true);
  (void)scale.end_step(true, true);
  EXPECT_EQ(scale.value(), int64_t{1} << 24);
}

TEST(LossScale, GoesOnFromASave) {
  const LossScaleOptions options{.initial_exponent = 5, .growth_steps = 2};
  LossScale saved(options, true), restored(options, true);
  (void)saved.end_step(true, false);
  (void)saved.end_step(true, true);
  const StateList from = saved.state(), to = restored.state();
  ASSERT_EQ(from.size(), 2U);
  for (size_t i = 0; i < from.size(); ++i) {
    EXPECT_EQ(from[i].key, to[i].key);
    to[i].tensor.copy_(from[i].tensor);
  }
  EXPECT_EQ(restored.value(), 16);
  (void)restored.end_step(true, true);  // the second finite one in a row
  EXPECT_EQ(restored.value(), 32);
  EXPECT_TRUE(LossScale().state().empty());
  EXPECT_EQ(LossScale().value(), 1);
}

TEST(Autocast, NarrowsLayersAndPutsEverythingBack) {
  const at::Tensor x = at::rand({2, 3}), w = at::rand({4, 3});
  for (const auto& [precision, dtype] :
       {std::pair{"fp32", at::kFloat}, std::pair{"bf16", at::kBFloat16},
        std::pair{"fp16", at::kHalf}}) {
    {
      const Autocast autocast(precision, at::kCPU);
      EXPECT_EQ(at::linear(x, w).scalar_type(), dtype);
    }
    EXPECT_EQ(at::linear(x, w).scalar_type(), at::kFloat);
  }
}

SmallRunOptions with_precision(const std::string& precision) {
  SmallRunOptions options;
  options.train.precision = precision;
  options.train.loss_scale.initial_exponent = 8;
  return options;
}

std::vector<double> losses_of(const SmallRunOptions& options, int world_size, int num_steps) {
  std::vector<double> losses;
  tests::run_ranks(world_size, [&](dist::Communicator& comm) {
    SmallRun run(comm, options);
    for (int step = 0; step < num_steps; ++step) {
      const StepReport report = run.step();
      EXPECT_FALSE(report.skipped);
      if (comm.rank() == 0) losses.push_back(report.loss);
      run.require_equal_ranks();
    }
    for (const Param& param : run.model->params()) {
      EXPECT_EQ(param.tensor.scalar_type(), at::kFloat);
      EXPECT_EQ(param.tensor.grad().scalar_type(), at::kFloat);
    }
  });
  return losses;
}

TEST(Precision, NarrowerTypesTrainNearlyAsFloat32) {
  const std::vector<double> wide = losses_of(with_precision("fp32"), 2, 9);
  for (const auto& [precision, tolerance] : {std::pair{"bf16", 5e-2}, std::pair{"fp16", 2e-3}}) {
    const std::vector<double> narrow = losses_of(with_precision(precision), 2, 9);
    EXPECT_THAT(narrow, ::testing::Pointwise(::testing::DoubleNear(tolerance), wide));
    EXPECT_NE(narrow, wide) << precision;
  }
}

TEST(Precision, EveryNetworkTrainsInIt) {
  const model::ModelOptions small =
      model::cnn({.channels = {4, 6}, .hidden = 8, .batch_norm = true});
  for (const auto& [precision, tolerance] : {std::pair{"bf16", 2e-2}, std::pair{"fp16", 3e-3}})
    for (const char* batch_norm : {"broadcast", "average", "sync"}) {
      SmallRunOptions options = with_precision(precision);
      options.model = small;
      options.shape = {2, 4, 4};
      options.train.batch_norm = batch_norm;
      const std::vector<double> losses = losses_of(options, 4, 6);  // the third batch is of 2
      SmallRunOptions in_float32 = options;
      in_float32.train.precision = "fp32";
      const std::vector<double> wide = losses_of(in_float32, 4, 6);
      EXPECT_THAT(losses, ::testing::Pointwise(::testing::DoubleNear(tolerance), wide))
          << precision << ", " << batch_norm;
      EXPECT_NE(losses, wide) << precision << ", " << batch_norm;
    }
  SmallRunOptions digits = with_precision("bf16");
  digits.model = model::digits_net();
  digits.shape = {1, 8, 8};
  digits.num_classes = 10;
  EXPECT_EQ(losses_of(digits, 4, 3).size(), 3U);
}

/// The scale is a power of two, so that gradients are the same bits with and without it while
/// nothing over- or underflows: in float32 layers too.
TEST(Precision, TheScaleLeavesNoTraceInTheGradients) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    SmallRun plain(comm, {}), scaled(comm, {});
    scaled.loss_scale = LossScale({.initial_exponent = 10}, true);
    for (int step = 0; step < 4; ++step) {
      const StepReport report = scaled.step();
      EXPECT_EQ(report.loss_scale, 1024);
      EXPECT_EQ(report.loss, plain.step().loss);
    }
    for (size_t b = 0; b < plain.flat_params.buffers().size(); ++b) {
      EXPECT_TRUE(at::equal(plain.flat_params.buffers()[b].grads_E,
                            scaled.flat_params.buffers()[b].grads_E));
      EXPECT_TRUE(at::equal(plain.flat_params.buffers()[b].values_E,
                            scaled.flat_params.buffers()[b].values_E));
    }
  });
}

/// Gradients of about 0.1 times 2^24 overflow float16, so the scale falls step by step, by one
/// decision of all ranks, until they fit; none of it counts as a failure.
TEST(Precision, OverflowLowersTheScaleUntilUpdatesCount) {
  tests::run_ranks(3, [](dist::Communicator& comm) {
    SmallRunOptions options = with_precision("fp16");
    options.train.loss_scale.initial_exponent = 24;
    options.train.max_nonfinite_steps = 1;
    SmallRun run(comm, options);
    const at::Tensor before = run.flat_params.buffers()[0].values_E.clone();
    int num_skipped = 0;
    int64_t scale = 1 << 24;
    for (; num_skipped < 24; ++num_skipped) {
      const StepReport report = run.step();
      EXPECT_EQ(report.loss_scale, scale);
      EXPECT_TRUE(std::isfinite(report.loss));
      run.require_equal_ranks();
      if (!report.skipped) break;
      EXPECT_TRUE(at::equal(run.flat_params.buffers()[0].values_E, before));
      scale /= 2;
    }
    EXPECT_GE(num_skipped, 2);
    EXPECT_LT(num_skipped, 15);
    EXPECT_FALSE(at::equal(run.flat_params.buffers()[0].values_E, before));
  });
}

TEST(Precision, AScaleThatCannotMendItStopsTheRun) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    SmallRunOptions options = with_precision("fp16");
    options.train.max_nonfinite_steps = 2;
    SmallRun run(comm, options);
    if (comm.rank() == 1) run.model->params()[1].tensor.detach()[0].fill_(std::nan(""));
    EXPECT_TRUE(run.step().skipped);
    EXPECT_EQ(run.loss_scale.value(), 1 << 8);  // losses were not finite: not the scale's fault
    EXPECT_THROW((void)run.step(), Error);
  });
}

/// A run that takes over the state between steps continues with the same bits.
TEST(Precision, AResumedRunIsTheSame) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    SmallRunOptions options = with_precision("fp16");
    options.train.loss_scale = {.initial_exponent = 18, .growth_steps = 2};
    options.model = model::cnn({.channels = {4}, .hidden = 8, .batch_norm = true});
    options.shape = {1, 4, 4};
    options.num_samples = 4;  // one batch an epoch, so positions need no restore
    options.train.batch_norm = "sync";
    SmallRun unbroken(comm, options), resumed(comm, options);
    for (int step = 0; step < 5; ++step) {
      (void)unbroken.step();
      (void)resumed.loader.next();
    }
    resumed.clock.step = 5;
    StateList from = unbroken.state(), to = resumed.state();
    for (size_t i = 0; i < from.size(); ++i) to[i].tensor.copy_(from[i].tensor);
    for (int step = 0; step < 5; ++step) EXPECT_EQ(unbroken.step().loss, resumed.step().loss);
    from = unbroken.state();
    to = resumed.state();
    for (size_t i = 0; i < from.size(); ++i)
      EXPECT_TRUE(at::equal(from[i].tensor, to[i].tensor)) << from[i].key;
  });
}

/// One step with a clipped gradient moves the weights by learning rate × limit in all.
TEST(Clipping, LimitsTheStep) {
  for (const int world_size : {1, 3})
    tests::run_ranks(world_size, [](dist::Communicator& comm) {
      SmallRunOptions options;
      options.optimizer.clip.norm = 0.01;
      SmallRun run(comm, options);
      std::vector<at::Tensor> before;
      for (const Param& param : run.model->params())
        before.push_back(param.tensor.detach().clone());
      const StepReport report = run.step();
      ASSERT_TRUE(report.gradient_norm.has_value());
      EXPECT_GT(*report.gradient_norm, 0.1);
      double squares = 0;
      for (size_t p = 0; p < before.size(); ++p)
        squares +=
            (run.model->params()[p].tensor.detach() - before[p]).square().sum().item<double>();
      EXPECT_NEAR(std::sqrt(squares), 0.1 * 0.01, 1e-7);
      run.require_equal_ranks();
    });
}

/// Gradients of pruned weights do not count: the norm is that of what the update uses.
TEST(Clipping, TheNormIsThatOfMaskedGradients) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    SmallRunOptions options;
    options.optimizer.clip.norm = 1e9;
    options.recipe = R"(
version: 1.0.0
modifiers:
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 3}
  - !GMPruningModifier
    {params: ['layers.0'], init_sparsity: 0.8, final_sparsity: 0.9, start_epoch: 0, end_epoch: 2,
     update_frequency: 1}
)";
    SmallRun run(comm, options);
    const StepReport report = run.step();
    double squares = 0, pruned = 0;
    for (const Param& param : run.model->params())
      squares += param.tensor.grad().square().sum().item<double>();
    const at::Tensor weight = run.model->params()[0].tensor.detach();
    pruned =
        run.model->params()[0].tensor.grad().masked_select(weight == 0).abs().sum().item<double>();
    EXPECT_EQ(pruned, 0);
    EXPECT_EQ((weight == 0).sum().item<int64_t>(), 12);  // of 15
    EXPECT_NEAR(*report.gradient_norm, std::sqrt(squares), 1e-6);
  });
}

}  // namespace precision_test
}  // namespace lockstep::train
