// A language model with dropout: what is dropped does not depend on how a batch is divided.
#include <map>

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "support/thread_world.h"
#include "tests/support/network_from_text.h"
#include "tests/train/small_run.h"

namespace lockstep::train {
namespace dropout_on_ranks_test {

using tests::SmallRun;
using tests::SmallRunOptions;
using State = std::map<std::string, at::Tensor>;

SmallRunOptions small_gpt(const std::string& dropout) {
  return {.model = tests::network("{type: gpt, layers: 2, heads: 2, width: 8, dropout: " + dropout +
                                  "}"),
          .shape = {6},
          .num_samples = 24,
          .global_batch = 8,
          .tokens = 11};
}

/// Parameters after 4 steps.
State trained(const SmallRunOptions& options, int world_size) {
  State result;
  tests::run_ranks(world_size, [&](dist::Communicator& comm) {
    SmallRun run(comm, options);
    for (int step = 0; step < 4; ++step) EXPECT_FALSE(run.step().skipped);
    run.require_equal_ranks();
    if (comm.rank() == 0)
      for (const StateEntry& entry : run.state()) result[entry.key] = entry.tensor.clone();
  });
  return result;
}

double distance(const State& some, const State& others) {
  double largest = 0;
  EXPECT_EQ(some.size(), others.size());
  for (const auto& [name, tensor] : some)
    largest = std::max(largest, (tensor - others.at(name)).abs().max().item<double>());
  return largest;
}

TEST(DropoutOnRanks, OneTwoAndFourRanksTrainAlike) {
  const State alone = trained(small_gpt("0.3"), 1);
  for (const int world_size : {2, 4})
    EXPECT_LT(distance(trained(small_gpt("0.3"), world_size), alone), 1e-6) << world_size;
  EXPECT_GT(distance(trained(small_gpt("0"), 1), alone), 1e-4);  // it does drop
}

TEST(DropoutOnRanks, MicroBatchesDropWhatTheWholeBatchDoes) {
  SmallRunOptions in_parts = small_gpt("0.3");
  in_parts.train.replicas_to_aggregate = 3;
  EXPECT_LT(distance(trained(in_parts, 2), trained(small_gpt("0.3"), 1)), 1e-6);
}

TEST(DropoutOnRanks, ElasticTrainingGivesTheSameBits) {
  SmallRunOptions options = small_gpt("0.3");
  options.elastic = true;
  const State alone = trained(options, 1);
  for (const int world_size : {2, 4})
    EXPECT_EQ(distance(trained(options, world_size), alone), 0) << world_size;
}

}  // namespace dropout_on_ranks_test
}  // namespace lockstep::train
