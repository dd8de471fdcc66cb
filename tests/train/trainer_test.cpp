#include "train/step/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "data/dataset_table.h"
#include "dist/reducer/buckets.h"
#include "model/networks/model_table.h"
#include "model/networks/small_networks.h"
#include "support/thread_world.h"
#include "train/step/step_modes.h"

namespace lockstep::train {
namespace trainer_test {

/// One rank's trainer over 10 samples of 3 numbers in batches of 4, so that each epoch ends with a
/// batch of 2.
struct Rank {
  explicit Rank(dist::Communicator& comm, const TrainOptions& options = {},
                double learning_rate = 0.5)
      : dataset({3}, 4, 10, 1),
        sampler({.num_samples = 10, .global_batch_size = 4, .seed = 2}),
        loader(dataset, sampler, comm.rank(), comm.world_size()),
        model(model::mlp({.layers = {3, 5, 4}, .activation = "tanh"}).make({{3}, 4, 17})),
        flat_params(model->params(), {{2, 0}, {3, 1}}, at::kCPU),
        reducer(comm, flat_params.buffers(), model->params(),
                {.overlap = "false", .sparse_allreduce = "never"}),
        optimizer_options{.type = "sgd", .learning_rate = learning_rate},
        optimizer(optim::make_optimizer(optimizer_options, flat_params.buffers(), model->params())),
        recipe(attached(model->params(), sampler.steps_per_epoch(), learning_rate)),
        loss(options.loss, {}, dataset.spec()),
        clock{.step = 0, .steps_per_epoch = sampler.steps_per_epoch()},
        ema(std::nullopt, model->params()),
        mode(comm),
        trainer({.control = comm,
                 .loader = loader,
                 .model = *model,
                 .flat_params = flat_params,
                 .reducer = reducer,
                 .optimizer = *optimizer,
                 .optimizer_options = optimizer_options,
                 .recipe = recipe,
                 .loss = loss,
                 .loss_scale = loss_scale,
                 .ema = ema,
                 .clock = clock,
                 .mode = mode,
                 .total_steps = 100},
                options) {}

  static recal::ScheduledModifierManager attached(const ParamTable& params, int64_t steps_per_epoch,
                                                  double learning_rate) {
    recal::ScheduledModifierManager manager{recal::Recipe()};
    Diagnostics faults;
    manager.attach(
        params, {.steps_per_epoch = steps_per_epoch, .base_learning_rate = learning_rate}, &faults);
    faults.throw_if_any("test");
    return manager;
  }

  data::RandomDataset dataset;
  data::Sampler sampler;
  data::Loader loader;
  std::unique_ptr<model::Model> model;
  optim::FlatParams flat_params;
  dist::GradientReducer reducer;
  optim::OptimizerOptions optimizer_options;
  std::unique_ptr<optim::Optimizer> optimizer;
  recal::ScheduledModifierManager recipe;
  Loss loss;
  StepClock clock;
  LossScale loss_scale;
  optim::Ema ema;
  Synchronous mode;
  Trainer trainer;
};

std::vector<double> losses_of(int world_size, const TrainOptions& options = {}) {
  std::vector<double> losses;
  tests::run_ranks(world_size, [&](dist::Communicator& comm) {
    Rank rank(comm, options);
    for (int step = 0; step < 9; ++step) {
      const StepReport report = rank.trainer.step({});
      if (comm.rank() == 0) losses.push_back(report.loss);
    }
  });
  return losses;
}

TEST(Trainer, EveryWorldSizeAndMicroBatchMakesTheSameUpdates) {
  const std::vector<double> alone = losses_of(1);
  EXPECT_GT(alone.front(), alone.back());
  for (const int world_size :
       {2, 3, 4})  // with 4 ranks, some have no sample in an epoch's last batch
    EXPECT_THAT(losses_of(world_size), ::testing::Pointwise(::testing::DoubleNear(1e-6), alone))
        << world_size;
  EXPECT_THAT(losses_of(2, {.replicas_to_aggregate = 3}),
              ::testing::Pointwise(::testing::DoubleNear(1e-6), alone));
}

TEST(Trainer, APartialBatchIsWeightedBySamples) {
  tests::run_ranks(3, [](dist::Communicator& comm) {
    Rank rank(comm);
    std::vector<int64_t> global, mine;
    for (int step = 0; step < 3; ++step) {
      const StepReport report = rank.trainer.step({});
      global.push_back(report.global_samples);
      mine.push_back(report.rank_samples);
      EXPECT_EQ(report.ends_epoch, step == 2);
    }
    EXPECT_EQ(global, (std::vector<int64_t>{4, 4, 2}));
    const std::vector<std::vector<int64_t>> expected{{1, 1, 0}, {1, 1, 1}, {2, 2, 1}};
    EXPECT_EQ(mine, expected[static_cast<size_t>(comm.rank())]);
  });
}

/// The gradient of one step, computed on one rank by hand: mean loss of the whole global batch.
TEST(Trainer, TheUpdateIsTheGradientOfTheMeanLoss) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    Rank rank(comm), reference(comm);
    (void)rank.trainer.step({});
    const data::Samples batch = reference.dataset.get(
        data::Sampler({.num_samples = 10, .global_batch_size = 4, .seed = 2}).next().indices, 0);
    const at::Tensor loss =
        at::cross_entropy_loss(reference.model->forward(batch.inputs_BX), batch.targets_BY);
    loss.backward();
    for (size_t p = 0; p < rank.model->params().size(); ++p) {
      const at::Tensor& start = reference.model->params()[p].tensor;
      const at::Tensor expected = start.detach() - 0.5 * start.grad();
      EXPECT_TRUE(at::allclose(rank.model->params()[p].tensor.detach(), expected, 1e-5, 1e-6)) << p;
    }
  });
}

TEST(Trainer, VotesOfAnyRankReachAll) {
  tests::run_ranks(3, [](dist::Communicator& comm) {
    Rank rank(comm);
    StepReport report = rank.trainer.step({.save = comm.rank() == 0, .stop = comm.rank() == 1});
    EXPECT_TRUE(report.wants_save);
    EXPECT_TRUE(report.wants_stop);
    EXPECT_FALSE(report.must_end);
    report = rank.trainer.step({.end = comm.rank() == 2});
    EXPECT_FALSE(report.wants_save);
    EXPECT_FALSE(report.wants_stop);
    EXPECT_TRUE(report.must_end);
  });
}

TEST(Trainer, ANonFiniteRankMakesAllSkipAndInTheEndStop) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    Rank rank(comm, {.max_nonfinite_steps = 3});
    if (comm.rank() == 1) rank.model->params()[1].tensor.detach()[0].fill_(std::nan(""));
    const at::Tensor before = rank.flat_params.buffers()[0].values_E.clone();  // the weights
    EXPECT_TRUE(rank.trainer.step({}).skipped);
    EXPECT_TRUE(rank.trainer.step({}).skipped);
    EXPECT_TRUE(
        at::allclose(rank.flat_params.buffers()[0].values_E, before, 0, 0, /*equal_nan=*/true));
    try {
      (void)rank.trainer.step({});
      ADD_FAILURE() << "the third must stop";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kNonFinite);
      EXPECT_TRUE(error.on_every_rank());
    }
  });
}

TEST(Trainer, OneGoodStepForgivesTheSkippedOnes) {
  tests::run_ranks(1, [](dist::Communicator& comm) {
    Rank rank(comm, {.max_nonfinite_steps = 2});
    const at::Tensor bias = rank.model->params()[1].tensor.detach();
    for (int round = 0; round < 3; ++round) {
      const at::Tensor good = bias.clone();
      bias[0].fill_(std::nan(""));
      EXPECT_TRUE(rank.trainer.step({}).skipped);
      bias.copy_(good);
      EXPECT_FALSE(rank.trainer.step({}).skipped);
    }
  });
}

}  // namespace trainer_test
}  // namespace lockstep::train
