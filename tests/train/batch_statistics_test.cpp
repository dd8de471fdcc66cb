#include "train/step/buffers.h"

#include <chrono>
#include <cmath>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "model/networks/small_networks.h"
#include "support/thread_world.h"
#include "tests/train/small_run.h"
#include "train/evaluator.h"

namespace lockstep::train {
namespace batch_statistics_test {

using tests::SmallRun;
using tests::SmallRunOptions;

SmallRunOptions normalised_cnn(const std::string& batch_norm) {
  SmallRunOptions options{.model = model::cnn({.channels = {3}, .hidden = 6, .batch_norm = true}),
                          .shape = {1, 4, 4},
                          .num_samples = 5,
                          .global_batch = 5};
  options.train.batch_norm = batch_norm;
  return options;
}

const at::Tensor& moving_mean(const SmallRun& run) { return run.model->buffers()[0].tensor; }
const at::Tensor& moving_variance(const SmallRun& run) { return run.model->buffers()[1].tensor; }
int64_t num_batches(const SmallRun& run) { return run.model->buffers()[2].tensor.item<int64_t>(); }

/// Output of the first convolution for a share of the first global batch, with the initial weights.
at::Tensor first_outputs(dist::Communicator& comm, const SmallRunOptions& options, int rank) {
  SmallRun fresh(comm, options);
  const std::vector<int64_t> order = fresh.sampler.next().indices;
  const data::Shard share = data::shard_of(5, rank, comm.world_size());
  const data::Samples samples = fresh.dataset.get(
      std::span(order).subspan(static_cast<size_t>(share.begin), static_cast<size_t>(share.size())),
      0);
  const ParamTable& params = fresh.model->params();
  return at::conv2d(samples.inputs_BX, params[0].tensor, params[1].tensor, 1, 1).detach();
}

struct Statistics {
  at::Tensor mean, variance;
};

Statistics statistics_of(const at::Tensor& outputs) {
  const auto [variance, mean] = at::var_mean(outputs, std::vector<int64_t>{0, 2, 3}, 1);
  return {mean, variance};
}

/// One step on 2 ranks with 2 and 3 samples: the moving statistics go a tenth of the way from 0 and
/// 1 to those expected.
void expect_after_one_step(
    const std::string& mode,
    const std::function<Statistics(const at::Tensor&, const at::Tensor&)>& expected_of) {
  const SmallRunOptions options = normalised_cnn(mode);
  tests::run_ranks(2, [&](dist::Communicator& comm) {
    const at::Tensor first = first_outputs(comm, options, 0);
    const at::Tensor second = first_outputs(comm, options, 1);
    ASSERT_NE(first.size(0), second.size(0));
    const Statistics expected = expected_of(first, second);
    SmallRun run(comm, options);
    (void)run.step();
    EXPECT_TRUE(at::allclose(moving_mean(run), expected.mean * 0.1, 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(moving_variance(run), expected.variance * 0.1 + 0.9, 1e-5, 1e-6));
    EXPECT_EQ(num_batches(run), 1);
    run.require_equal_ranks();
  });
}

TEST(BatchStatistics, BroadcastTakesThoseOfRank0) {
  expect_after_one_step(
      "broadcast", [](const at::Tensor& first, const at::Tensor&) { return statistics_of(first); });
}

TEST(BatchStatistics, AverageWeighsRanksBySamples) {
  expect_after_one_step("average", [](const at::Tensor& first, const at::Tensor& second) {
    const Statistics a = statistics_of(first), b = statistics_of(second);
    const auto n = static_cast<double>(first.size(0)), m = static_cast<double>(second.size(0));
    return Statistics{(n * a.mean + m * b.mean) / (n + m),
                      (n * a.variance + m * b.variance) / (n + m)};
  });
}

TEST(BatchStatistics, SyncTakesThoseOfTheWholeBatch) {
  expect_after_one_step("sync", [](const at::Tensor& first, const at::Tensor& second) {
    return statistics_of(at::cat({first, second}));
  });
}

TEST(BatchStatistics, ASkippedStepMovesNothing) {
  for (const char* mode : {"broadcast", "average", "sync"})
    tests::run_ranks(2, [&](dist::Communicator& comm) {
      SmallRun run(comm, normalised_cnn(mode));
      (void)run.step();
      const at::Tensor mean = moving_mean(run).clone(), variance = moving_variance(run).clone();
      const at::Tensor bias = run.model->params()[1].tensor.detach();
      const at::Tensor good = bias.clone();
      if (comm.rank() == 1) bias[0].fill_(std::nan(""));
      EXPECT_TRUE(run.step().skipped);
      EXPECT_TRUE(at::equal(moving_mean(run), mean)) << mode;
      EXPECT_TRUE(at::equal(moving_variance(run), variance)) << mode;
      bias.copy_(good);
      EXPECT_FALSE(run.step().skipped);  // nothing of the bad batch is left
      EXPECT_EQ(num_batches(run), 2);
      EXPECT_TRUE(at::isfinite(moving_variance(run)).all().item<bool>()) << mode;
      run.require_equal_ranks();
    });
}

TEST(BatchStatistics, EvaluationUsesAndKeepsTheMovingOnes) {
  tests::run_ranks(2, [&](dist::Communicator& comm) {
    SmallRun run(comm, normalised_cnn("average"));
    (void)run.step();
    const at::Tensor mean = moving_mean(run).clone();
    // One sample at a time: by their own statistics these would be other numbers.
    const EvalResult one_by_one =
        evaluate(ModelHandler(*run.model), run.loss, run.dataset, {.batch_size = 1}, comm);
    const EvalResult whole =
        evaluate(ModelHandler(*run.model), run.loss, run.dataset, {.batch_size = 5}, comm);
    EXPECT_NEAR(one_by_one.loss, whole.loss, 1e-6);
    EXPECT_TRUE(at::equal(moving_mean(run), mean));
    EXPECT_TRUE(run.model->is_training());
  });
}

/// Makes the forward pass of a rank slow.
class SlowLayers final : public LayerHook {
 public:
  at::Tensor input(int64_t /*layer*/, const at::Tensor& input) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return input;
  }
  at::Tensor weight(int64_t /*layer*/, const at::Tensor& weight) override { return weight; }
};

TEST(BatchStatistics, WhoWaitsForASlowRankDoesNotWork) {
  for (const char* mode : {"average", "sync"}) {
    const SmallRunOptions options = normalised_cnn(mode);
    tests::run_ranks(2, [&](dist::Communicator& comm) {
      SmallRun run(comm, options);
      SlowLayers slow;
      if (comm.rank() == 1) run.model->set_layer_hook(&slow);
      EXPECT_EQ(run.step().is_straggler, comm.rank() == 1) << mode;
      run.model->set_layer_hook(nullptr);
    });
  }
}

TEST(BatchStatistics, ARecipeFreezesThem) {
  for (const char* mode : {"broadcast", "average", "sync"}) {
    SmallRunOptions options = normalised_cnn(mode);
    options.recipe = R"(
version: 1.0.0
modifiers:
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 9}
  - !QuantizationModifier {start_epoch: 0, freeze_bn_stats_epoch: 2}
)";
    tests::run_ranks(2, [&](dist::Communicator& comm) {
      SmallRun run(comm, options);
      EXPECT_TRUE(run.recipe.timeline().warnings().empty());
      at::Tensor mean;
      for (int64_t step = 0; step < 4; ++step) {
        (void)run.step();
        if (step == 1) mean = moving_mean(run).clone();
      }
      EXPECT_EQ(num_batches(run), 2) << mode;
      EXPECT_TRUE(at::equal(moving_mean(run), mean)) << mode;
      run.require_equal_ranks();
    });
  }
}

}  // namespace batch_statistics_test
}  // namespace lockstep::train
