// Ranks that are out of data: batches smaller than the world, for every network and every way of
// keeping batch statistics.
#include <map>

#include <ATen/ops/isfinite.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "model/networks/model_table.h"
#include "model/networks/small_networks.h"
#include "support/thread_world.h"
#include "tests/train/small_run.h"

namespace lockstep::train {
namespace uneven_data_test {

using tests::SmallRun;
using tests::SmallRunOptions;

struct Network {
  const char* name;
  bool equals_one_rank;  ///< does not depend on how a batch is divided
  model::ModelOptions model;
  std::vector<int64_t> shape;
  std::string batch_norm = "average";
};

model::ModelOptions small_cnn(bool batch_norm) {
  return model::cnn({.channels = {4, 4, 6}, .hidden = 8, .batch_norm = batch_norm});
}

const std::vector<Network> kNetworks{
    {"digits_net", true, model::digits_net(), {1, 8, 8}},
    {"mlp", true, model::mlp({.layers = {6, 5, 10}, .activation = "tanh"}), {6}},
    {"cnn", true, small_cnn(false), {1, 6, 6}},
    {"cnn_broadcast", false, small_cnn(true), {1, 6, 6}, "broadcast"},
    {"cnn_average", false, small_cnn(true), {1, 6, 6}, "average"},
    {"cnn_sync", true, small_cnn(true), {1, 6, 6}, "sync"},
};

/// Parameters and statistics after some steps, which every rank must agree on after each of them.
std::map<std::string, at::Tensor> train(const SmallRunOptions& options, int world_size,
                                        int64_t num_steps) {
  std::map<std::string, at::Tensor> result;
  tests::run_ranks(world_size, [&](dist::Communicator& comm) {
    SmallRun run(comm, options);
    for (int64_t step = 0; step < num_steps; ++step) {
      EXPECT_FALSE(run.step().skipped);
      run.require_equal_ranks();
    }
    if (comm.rank() == 0)
      for (const StateEntry& entry : run.state()) result[entry.key] = entry.tensor.clone();
  });
  return result;
}

void expect_close(const std::map<std::string, at::Tensor>& some,
                  const std::map<std::string, at::Tensor>& others) {
  ASSERT_EQ(some.size(), others.size());
  for (const auto& [name, tensor] : some) {
    EXPECT_TRUE(at::isfinite(tensor).all().item<bool>()) << name;
    EXPECT_LT((tensor - others.at(name)).abs().max().item<double>(), 1e-5) << name;
  }
}

class UnevenData : public ::testing::TestWithParam<Network> {};

/// 2 epochs of a full batch of 8 and one of 1 to 3.
TEST_P(UnevenData, TheLastBatchMayHaveFewerSamplesThanRanks) {
  const Network& network = GetParam();
  for (const int64_t in_last : {1, 2, 3}) {
    SmallRunOptions options{.model = network.model,
                            .shape = network.shape,
                            .num_classes = 10,
                            .num_samples = 8 + in_last,
                            .global_batch = 8};
    options.train.batch_norm = network.batch_norm;
    const auto divided = train(options, 4, 4);
    if (network.equals_one_rank) expect_close(divided, train(options, 1, 4));
    options.train.replicas_to_aggregate = 3;  // now a rank may lack samples in some parts only
    const auto in_parts = train(options, 4, 4);
    if (network.equals_one_rank && network.batch_norm != "sync") expect_close(in_parts, divided);
  }
}

TEST_P(UnevenData, TheWorldMayBeLargerThanTheBatch) {
  const Network& network = GetParam();
  SmallRunOptions options{.model = network.model,
                          .shape = network.shape,
                          .num_classes = 10,
                          .num_samples = 7,
                          .global_batch = 3};
  options.train.batch_norm = network.batch_norm;
  const auto divided = train(options, 4, 6);
  if (network.equals_one_rank) expect_close(divided, train(options, 1, 6));
}

INSTANTIATE_TEST_SUITE_P(Networks, UnevenData, ::testing::ValuesIn(kNetworks),
                         [](const auto& test) { return test.param.name; });

}  // namespace uneven_data_test
}  // namespace lockstep::train
