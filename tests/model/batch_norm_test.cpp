// Batch normalisation against ATen's own, alone and over several ranks that divide one batch.
#include "model/layers.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/batch_norm.h"
#include "model/model.h"
#include "model/networks/model_table.h"
#include "model/networks/small_networks.h"
#include "support/thread_world.h"

namespace lockstep::model {
namespace batch_norm_test {

constexpr int64_t kChannels = 3;

/// One normalisation behind a layer, as a network has it.
struct Net {
  LayerTable table;
  Conv3x3 conv{"conv", 1, kChannels, 1, 5, &table};
  BatchNorm norm{"norm", kChannels, &table};

  at::Tensor& gamma() { return table.params[2].tensor; }
  at::Tensor& beta() { return table.params[3].tensor; }
  at::Tensor moving_mean() { return table.buffers[0].tensor; }
  at::Tensor moving_variance() { return table.buffers[1].tensor; }
  int64_t num_batches() { return table.buffers[2].tensor.item<int64_t>(); }

  void set_gamma_and_beta() {
    gamma().detach().copy_(at::tensor({0.5, 2.0, -1.0}));
    beta().detach().copy_(at::tensor({1.0, 0.0, 0.25}));
  }
};

/// Images whose channels differ in mean and spread.
at::Tensor images(int64_t num_samples) {
  const at::Tensor noise = at::sin(at::arange(num_samples * kChannels * 4 * 2).mul(1.7))
                               .view({num_samples, kChannels, 4, 2});
  return noise * at::tensor({1.0F, 3.0F, 0.2F}).view({1, -1, 1, 1}) +
         at::tensor({0.0F, 3.0F, -0.5F}).view({1, -1, 1, 1});
}

/// Factors of the outputs in the loss, so that gradients differ by element.
at::Tensor loss_weights(int64_t num_samples) {
  return at::cos(at::arange(num_samples * kChannels * 4 * 2).mul(0.37))
      .view({num_samples, kChannels, 4, 2});
}

struct Result {
  at::Tensor outputs, input_grads, gamma_grad, beta_grad, mean_C, variance_C;
};

/// ATen's batch normalisation of the whole batch.
Result expected(const at::Tensor& inputs) {
  Net net;
  net.set_gamma_and_beta();
  const at::Tensor x = inputs.clone().set_requires_grad(true);
  at::Tensor mean = at::zeros({kChannels}), variance = at::zeros({kChannels});
  const at::Tensor y = at::batch_norm(x, net.gamma(), net.beta(), mean, variance, true, 1.0,
                                      BatchNormTable::kEpsilon, false);
  (y * loss_weights(x.size(0))).sum().backward();
  return {y.detach(), x.grad(), net.gamma().grad(), net.beta().grad(), mean, variance};
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 ? 0 : (a - b).abs().max().item<double>();
}

TEST(BatchNorm, AloneIsThatOfATen) {
  Net net;
  net.set_gamma_and_beta();
  const Result whole = expected(images(6));
  const at::Tensor x = images(6).set_requires_grad(true);
  const at::Tensor y = net.norm(x);
  (y * loss_weights(6)).sum().backward();
  EXPECT_TRUE(at::equal(y, whole.outputs));
  EXPECT_TRUE(at::equal(x.grad(), whole.input_grads));
  EXPECT_TRUE(at::equal(net.gamma().grad(), whole.gamma_grad));

  // Forward alone moves nothing; an update goes a tenth of the way from 0 and 1.
  EXPECT_EQ(distance(net.moving_mean(), at::zeros({kChannels})), 0);
  net.table.norms.update(net.table.norms.take_seen());
  EXPECT_LT(distance(net.moving_mean(), whole.mean_C * 0.1), 1e-5);
  EXPECT_LT(distance(net.moving_variance(), whole.variance_C * 0.1 + 0.9), 1e-5);
  EXPECT_EQ(net.num_batches(), 1);
}

TEST(BatchNorm, MicroBatchesCountAsOneBatchWeightedBySamples) {
  Net net;
  const at::Tensor inputs = images(4);
  (void)net.norm(inputs.narrow(0, 0, 3));
  (void)net.norm(inputs.narrow(0, 3, 1));
  net.table.norms.update(net.table.norms.take_seen());
  EXPECT_LT(distance(net.moving_mean(), inputs.mean({0, 2, 3}) * 0.1), 1e-5);
  EXPECT_EQ(net.num_batches(), 1);
  net.table.norms.update(net.table.norms.take_seen());  // nothing was seen
  EXPECT_EQ(net.num_batches(), 1);
}

TEST(BatchNorm, EvaluationAndFrozenTrainingGoByTheMovingStatistics) {
  Net net;
  net.set_gamma_and_beta();
  net.moving_mean().copy_(at::tensor({1.0, 99.0, -2.0}));
  net.moving_variance().copy_(at::tensor({4.0, 9.0, 0.25}));
  const auto by_channel = [](const at::Tensor& values) { return values.view({1, -1, 1, 1}); };
  const at::Tensor by_hand =
      (images(2) - by_channel(net.moving_mean())) /
          by_channel((net.moving_variance() + BatchNormTable::kEpsilon).sqrt()) *
          by_channel(net.gamma()) +
      by_channel(net.beta());
  EXPECT_GT(distance(net.norm(images(2)), by_hand), 0.1);
  net.table.norms.set_training(false);
  EXPECT_LT(distance(net.norm(images(2)), by_hand), 1e-5);
  net.table.norms.set_training(true);
  (void)net.table.norms.take_seen();
  net.table.norms.set_frozen(true);
  const at::Tensor frozen = net.norm(images(2));
  EXPECT_LT(distance(frozen, by_hand), 1e-5);
  const SeenStatistics nothing = net.table.norms.take_seen();
  EXPECT_THAT(nothing.num_samples_N, ::testing::ElementsAre(0));
  EXPECT_TRUE(nothing.sums_K.equal(at::zeros({2 * kChannels}, at::kDouble)));
  frozen.sum().backward();  // gamma and beta still learn
  EXPECT_LT(distance(net.beta().grad(), at::full({kChannels}, 16.0)), 1e-5);
}

TEST(BatchNorm, OneValueAndNoValueAreFinite) {
  Net net;
  const at::Tensor nothing = net.norm(at::rand({0, kChannels, 4, 2}));
  EXPECT_EQ(nothing.sizes(), (std::vector<int64_t>{0, kChannels, 4, 2}));
  nothing.sum().backward();
  EXPECT_EQ(distance(net.gamma().grad(), at::zeros({kChannels})), 0);
  const at::Tensor x = at::full({1, kChannels, 1, 1}, 7.0F).set_requires_grad(true);
  const at::Tensor y = net.norm(x);
  EXPECT_LT(distance(y, at::zeros_like(y)), 1e-4);  // beta; ATen rounds x gamma / 0.003
  y.sum().backward();
  EXPECT_EQ(distance(x.grad(), at::zeros_like(x)), 0);
  net.table.norms.update(net.table.norms.take_seen());
  EXPECT_LT(distance(net.moving_mean(), at::full({kChannels}, 0.7)), 1e-6);
  EXPECT_LT(distance(net.moving_variance(), at::full({kChannels}, 0.9)), 1e-6);
}

/// Parameter: number of samples of one batch on each rank.
class SyncBatchNorm : public ::testing::TestWithParam<std::vector<int64_t>> {};

TEST_P(SyncBatchNorm, OfDividedBatchIsThatOfTheWhole) {
  const std::vector<int64_t>& counts = GetParam();
  int64_t num_samples = 0;
  for (const int64_t count : counts) num_samples += count;
  const Result whole = expected(images(num_samples));
  tests::run_ranks(static_cast<int>(counts.size()), [&](dist::Communicator& comm) {
    const auto rank = static_cast<size_t>(comm.rank());
    int64_t begin = 0;
    for (size_t r = 0; r < rank; ++r) begin += counts[r];
    const auto share = [&](const at::Tensor& all) { return all.narrow(0, begin, counts[rank]); };

    Net net;
    net.set_gamma_and_beta();
    net.table.norms.set_sum_over_ranks([&](const at::Tensor& values_K) {
      comm.all_reduce(values_K, dist::ReduceOp::kSum)->wait();
    });
    const at::Tensor x = share(images(num_samples)).clone().set_requires_grad(true);
    const at::Tensor y = net.norm(x);
    EXPECT_LT(distance(y, share(whole.outputs)), 1e-6);
    (y * share(loss_weights(num_samples))).sum().backward();
    EXPECT_LT(distance(x.grad(), share(whole.input_grads)), 1e-6);

    const at::Tensor gamma_grad = net.gamma().grad(), beta_grad = net.beta().grad();
    comm.all_reduce(gamma_grad, dist::ReduceOp::kSum)->wait();
    comm.all_reduce(beta_grad, dist::ReduceOp::kSum)->wait();
    EXPECT_LT(distance(gamma_grad, whole.gamma_grad), 1e-5);
    EXPECT_LT(distance(beta_grad, whole.beta_grad), 1e-5);
    net.table.norms.update(net.table.norms.take_seen());  // already that of all ranks
    EXPECT_LT(distance(net.moving_mean(), whole.mean_C * 0.1), 1e-5);
    EXPECT_LT(distance(net.moving_variance(), whole.variance_C * 0.1 + 0.9), 1e-5);
  });
}

TEST(SyncBatchNorm, AMeanFarFromZeroCostsNoDigits) {
  const at::Tensor inputs = images(4) + 1000;
  tests::run_ranks(2, [&](dist::Communicator& comm) {
    const GlobalStatistics global =
        global_statistics(inputs.narrow(0, 3 * comm.rank(), comm.rank() == 0 ? 3 : 1),
                          [&](const at::Tensor& values_K) {
                            comm.all_reduce(values_K, dist::ReduceOp::kSum)->wait();
                          });
    const auto [variance_C, mean_C] =
        at::var_mean(inputs.to(at::kDouble), std::vector<int64_t>{0, 2, 3}, /*correction=*/0);
    EXPECT_EQ(global.num_samples, 4);
    EXPECT_TRUE(at::allclose(global.mean_C, mean_C, 1e-7));
    EXPECT_TRUE(at::allclose(global.variance_C, variance_C, 1e-4));  // squares are 1e6 times as big
  });
}

INSTANTIATE_TEST_SUITE_P(Shares, SyncBatchNorm,
                         ::testing::Values(std::vector<int64_t>{5}, std::vector<int64_t>{3, 3},
                                           std::vector<int64_t>{4, 1}, std::vector<int64_t>{0, 2},
                                           std::vector<int64_t>{1, 0, 1, 0}));

TEST(Cnn, NormalisesBetweenConvolutionAndReLU) {
  const auto net =
      cnn({.channels = {3, 4}, .hidden = 5, .batch_norm = true}).make({{1, 4, 4}, 2, 17});
  std::vector<std::string> names;
  for (const Param& param : net->params()) {
    names.push_back(param.name);
    EXPECT_EQ(param.decayed, param.tensor.dim() >= 2) << param.name;
  }
  EXPECT_THAT(names, ::testing::IsSupersetOf({"blocks.1.norm.gamma", "blocks.1.norm.beta"}));
  names.clear();
  for (const Buffer& buffer : net->buffers()) names.push_back(buffer.name);
  EXPECT_THAT(names,
              ::testing::ElementsAre("blocks.0.norm.moving_mean", "blocks.0.norm.moving_variance",
                                     "blocks.0.norm.num_batches", "blocks.1.norm.moving_mean",
                                     "blocks.1.norm.moving_variance", "blocks.1.norm.num_batches"));
  std::vector<bool> have;
  for (const LayerInfo& layer : net->layers()) have.push_back(layer.has_batch_norm);
  EXPECT_THAT(have, ::testing::ElementsAre(true, true, false, false));

  const at::Tensor inputs = at::rand({6, 1, 4, 4});
  const auto training = net->forward(inputs);
  net->set_training(false);
  EXPECT_GT(distance(net->forward(inputs), training), 1e-3);
}

}  // namespace batch_norm_test
}  // namespace lockstep::model
