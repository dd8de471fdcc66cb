// sync.sync_replicas: false: steps of each rank's own, and means.
#include "train/step/step_modes.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/networks/small_networks.h"
#include "support/thread_world.h"
#include "tests/train/small_run.h"

namespace lockstep::train {
namespace local_steps_test {

using tests::SmallRun;
using tests::SmallRunOptions;

/// 10 samples in batches of 4, so that each epoch has 3 steps and the last one's batch is short.
SmallRunOptions local(int64_t sync_every, const std::string& optimizer = "sgd") {
  SmallRunOptions options;
  options.model = model::mlp({.layers = {3, 17, 4}, .activation = "tanh"});
  options.optimizer.type = optimizer;
  options.sync.sync_replicas = false;
  options.sync.sync_every = sync_every;
  return options;
}

/// All samples in one batch: no epoch's end comes between.
SmallRunOptions local_in_long_epochs(int64_t sync_every, const std::string& optimizer) {
  SmallRunOptions options = local(sync_every, optimizer);
  options.num_samples = 400;
  return options;
}

std::vector<at::Tensor> weights_of(const SmallRun& run) {
  std::vector<at::Tensor> weights;
  for (const Param& param : run.model->params()) weights.push_back(param.tensor.detach().clone());
  return weights;
}

bool equal_on_all_ranks(SmallRun& run) {
  try {
    run.require_equal_ranks();
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// The mean of updated weights is the update by the mean gradient, whatever each rank's number of
/// samples: with 4 ranks some have none in an epoch's last batch.
TEST(LocalSteps, OneStepOfSgdIsTheSynchronousStep) {
  for (const int world_size : {2, 3, 4})
    tests::run_ranks(world_size, [](dist::Communicator& comm) {
      SmallRunOptions every_step = local(1);
      every_step.sync.sync_replicas = true;
      SmallRun ours(comm, local(1)), reference(comm, every_step);
      for (int step = 0; step < 24; ++step) {
        const double loss = ours.step().loss;
        EXPECT_NEAR(loss, reference.step().loss, 1e-6);
        for (size_t i = 0; i < ours.model->params().size(); ++i)
          EXPECT_TRUE(at::allclose(ours.model->params()[i].tensor.detach(),
                                   reference.model->params()[i].tensor.detach(), 1e-6, 1e-6));
      }
    });
}

TEST(LocalSteps, RanksAreEqualAfterMeansAndNothingTravelsBetween) {
  for (const std::string optimizer : {"sgd", "momentum", "adam"})
    tests::run_ranks(3, [&](dist::Communicator& comm) {
      SmallRunOptions options = local_in_long_epochs(4, optimizer);
      options.optimizer.ema_decay = 0.9;
      SmallRun run(comm, options);
      for (int step = 1; step <= 40; ++step) {
        const int64_t before = run.gradients->bytes_reduced();
        const StepReport report = run.step();
        EXPECT_EQ(report.ranks_agree, step % 4 == 0) << step;
        EXPECT_EQ(report.global_samples, 4);
        EXPECT_EQ(run.gradients->bytes_reduced() - before, report.totals.bytes_reduced) << step;
        EXPECT_EQ(report.totals.bytes_reduced > 0, report.ranks_agree) << step;
        EXPECT_EQ(equal_on_all_ranks(run), report.ranks_agree) << step;
      }
    });
}

/// The rule by hand: each rank alone for two steps, then the mean of the two.
TEST(LocalSteps, AMeanIsTheMeanOfWhatRanksLearntAlone) {
  std::vector<std::vector<at::Tensor>> alone(2), joined(2);
  for (auto* learnt : {&alone, &joined})
    tests::run_ranks(2, [&](dist::Communicator& comm) {
      SmallRun run(comm, local_in_long_epochs(learnt == &alone ? 100 : 2, "sgd"));
      (void)run.step();
      (void)run.step();
      (*learnt)[static_cast<size_t>(comm.rank())] = weights_of(run);
    });
  for (size_t i = 0; i < joined[0].size(); ++i) {
    EXPECT_TRUE(at::equal(joined[0][i], joined[1][i]));
    EXPECT_TRUE(at::equal(joined[0][i], (alone[0][i] + alone[1][i]) / 2));
    EXPECT_FALSE(at::equal(alone[0][i], alone[1][i]));
  }
}

TEST(LocalSteps, AMeanComesBeforeEachChangeOfMasksAndAtEpochsEnds) {
  SmallRunOptions options = local(1000, "momentum");
  options.num_samples = 40;  // 10 steps an epoch
  options.recipe = R"(version: 1.0.0
modifiers:
  - !GradualKSModifier {params: __ALL__, init_sparsity: 0.2, final_sparsity: 0.8, start_step: 3, end_step: 18, update_frequency_steps: 5}
  - !SetLearningRateModifier {start_epoch: 1.5, learning_rate: 0.05}
  - !TrainableParamsModifier {params: [layers.1], trainable: false, start_step: 6, end_step: 12}
)";
  tests::run_ranks(2, [&](dist::Communicator& comm) {
    SmallRun run(comm, options);
    std::vector<int64_t> means;
    for (int64_t step = 1; step <= 22; ++step)
      if (run.step().ranks_agree) {
        means.push_back(step);
        run.require_equal_ranks();
      }
    EXPECT_EQ(means, (std::vector<int64_t>{3, 6, 8, 10, 12, 13, 18, 20}));
    EXPECT_NEAR(run.recipe.sparsity(), 0.8, 0.02);
    for (const recal::ParamSparsity& layer : run.recipe.measure())
      EXPECT_EQ(layer.num_zeros, layer.num_pruned) << layer.name;
  });
}

TEST(LocalSteps, MovingStatisticsAreEqualAfterMeans) {
  for (const std::string mode : {"average", "broadcast"})
    tests::run_ranks(3, [&](dist::Communicator& comm) {
      SmallRunOptions options = local(2);
      options.model = model::cnn({.channels = {3}, .hidden = 6, .batch_norm = true});
      options.shape = {1, 4, 4};
      options.num_samples = 60;
      options.train.batch_norm = mode;
      SmallRun run(comm, options);
      (void)run.step();
      const at::Tensor own = run.model->buffers()[0].tensor.to(at::kDouble);
      EXPECT_FALSE(equal_on_all_ranks(run));
      (void)run.step();
      run.require_equal_ranks();
      EXPECT_EQ(run.model->buffers()[2].tensor.item<int64_t>(), 2);
      EXPECT_FALSE(at::equal(own, run.model->buffers()[0].tensor.to(at::kDouble)));
    });
}

/// Bytes that a mean with momentum sends: with all parameters trained, and with the first layer's 3
/// x 17 weights frozen from the start. Frozen weights and their slots are not sent.
TEST(LocalSteps, WhatIsFrozenDoesNotTravel) {
  const auto bytes_of_mean = [](const std::string& recipe) {
    int64_t num_bytes = 0;
    tests::run_ranks(2, [&](dist::Communicator& comm) {
      SmallRunOptions options = local_in_long_epochs(2, "momentum");
      if (!recipe.empty()) options.recipe = recipe;
      SmallRun run(comm, options);
      (void)run.step();
      const int64_t bytes = run.step().totals.bytes_reduced;
      run.require_equal_ranks();
      if (comm.rank() == 0) num_bytes = bytes;
    });
    return num_bytes;
  };
  const int64_t all = bytes_of_mean(""), some = bytes_of_mean(R"(version: 1.0.0
modifiers:
  - !TrainableParamsModifier {params: [layers.0.weight], trainable: false, start_step: 0, end_step: 50}
)");
  EXPECT_EQ(all - some, 2 * 3 * 17 * 4);
}

/// A network whose code is a user's: a parameter that its code moves (as a momentum encoder's), and
/// complex statistics.
class OwnCode final : public model::Model {
 public:
  OwnCode() {
    table_.buffers.push_back({"target", at::ones({3})});
    table_.buffers.push_back(
        {"spectrum", at::zeros({2}, at::kComplexFloat), /*moved_by_forward=*/true});
  }
  bool runs_user_code() const override { return true; }
  at::Tensor forward(const at::Tensor& inputs_BX) override { return inputs_BX; }
};

TEST(LocalSteps, BuffersOfAUsersNetwork) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    SmallRun run(comm, local_in_long_epochs(2, "sgd"));
    OwnCode net;
    LocalSteps without(*run.gradients, {}, /*statistics_of_root=*/false);
    LocalSteps with(*run.gradients, {}, /*statistics_of_root=*/false);
    const at::Tensor target = net.buffers()[0].tensor, spectrum = net.buffers()[1].tensor;
    target.fill_(comm.rank());
    spectrum.fill_(c10::complex<float>(static_cast<float>(comm.rank()), 4));
    const int64_t before = without.average(run.parts(*run.model)).bytes_reduced;
    EXPECT_EQ(with.average(run.parts(net)).bytes_reduced - before,
              (3 + 2 * 2) * 8);  // float64, and pairs of it
    EXPECT_TRUE(target.equal(at::full({3}, 0.5)));
    const auto mean = c10::complex<float>(0.5, 4);
    EXPECT_TRUE(spectrum.equal(at::full({2}, mean, at::kComplexFloat)));
  });
}

/// Two samples for three ranks: rank 0 has none of them.
TEST(LocalSteps, ARankWithoutSamplesHasNoLoss) {
  tests::run_ranks(3, [](dist::Communicator& comm) {
    SmallRunOptions options = local_in_long_epochs(2, "sgd");
    options.global_batch = 2;
    SmallRun run(comm, options);
    StepReport report = run.step();
    EXPECT_EQ(report.rank_samples, comm.rank() == 0 ? 0 : 1);
    EXPECT_EQ(report.has_loss, comm.rank() != 0);
    EXPECT_EQ(std::isfinite(report.loss), comm.rank() != 0);
    report = run.step();  // a mean: of all
    EXPECT_TRUE(report.has_loss && std::isfinite(report.loss));
  });
}

TEST(LocalSteps, VotesWaitForTheMean) {
  tests::run_ranks(3, [](dist::Communicator& comm) {
    SmallRun run(comm, local_in_long_epochs(3, "sgd"));
    StepReport report = run.trainer.step({.save = comm.rank() == 0, .stop = comm.rank() == 1});
    EXPECT_FALSE(report.wants_save || report.wants_stop);
    report = run.trainer.step({.save_done = true});
    EXPECT_FALSE(report.wants_save || report.wants_stop || report.save_is_done);
    report = run.trainer.step({.end = comm.rank() == 2});
    EXPECT_TRUE(report.wants_save && report.wants_stop && report.save_is_done && report.must_end);
    for (int i = 0; i < 3; ++i) report = run.trainer.step({});
    EXPECT_FALSE(report.wants_save || report.wants_stop || report.save_is_done || report.must_end);
  });
}

TEST(LocalSteps, ARankThatIsNotFiniteSkipsAloneAndInTheEndStopsAll) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    SmallRunOptions options = local_in_long_epochs(4, "adam");
    options.train.max_nonfinite_steps = 6;
    SmallRun run(comm, options);
    const at::Tensor bias = run.model->params()[1].tensor.detach();
    const at::Tensor good = bias.clone();
    const auto spoil = [&] {
      if (comm.rank() == 1) bias[0].fill_(std::nan(""));
    };
    spoil();
    EXPECT_EQ(run.step().skipped, comm.rank() == 1);
    if (comm.rank() == 1) bias.copy_(good);
    StepReport report;
    for (int i = 0; i < 3; ++i) report = run.step();
    EXPECT_FALSE(report.skipped);  // some rank has learnt
    EXPECT_TRUE(std::isfinite(report.loss));
    run.require_equal_ranks();  // the number of updates too
    spoil();
    try {
      for (int i = 0; i < 12; ++i) {
        report = run.step();
        if (report.step == 8) {  // at a mean: rank 0 has learnt, rank 1 skipped this update too
          EXPECT_FALSE(report.skipped);
          EXPECT_EQ(report.rank_skipped_update, comm.rank() == 1);
        }
        spoil();  // a mean has spoilt the other rank too
      }
      ADD_FAILURE() << "it must stop";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kNonFinite);
      EXPECT_TRUE(error.on_every_rank());
      EXPECT_EQ(run.clock.step, 12);
    }
  });
}

}  // namespace local_steps_test
}  // namespace lockstep::train
