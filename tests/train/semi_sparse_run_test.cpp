// A run whose masks become 2:4 transposable computes on sparse tensor cores from then on, recorded
// passes too. The operators are those of a fake device.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "recal/masks/mask_table.h"
#include "tests/support/fake_graph.h"
#include "tests/support/fake_semi_sparse.h"
#include "tests/support/thread_world.h"
#include "tests/train/small_run.h"

namespace lockstep::train {
namespace semi_sparse_run_test {

using tests::FakeGraph;
using tests::FakeSemiSparse;
using tests::SmallRun;
using tests::SmallRunOptions;

constexpr int kSteps = 40, kLastMask = 10;

SmallRunOptions options_of(const std::string& mask_type) {
  SmallRunOptions options;
  options.model = model::mlp({.layers = {16, 64, 32, 4}, .activation = "tanh"});
  options.shape = {16};
  options.num_samples = options.global_batch = 2 * 1024;
  options.train.precision = "bf16";
  options.sync.overlap = "false";
  options.optimizer.type = "momentum";
  options.recipe =
      "version: 1.0.0\nmodifiers:\n"
      "  - !GMPruningModifier {params: ['re:layers.[01].weight'], init_sparsity: 0.2, "
      "final_sparsity: 0.5, start_step: 2, end_step: 10, update_frequency_steps: 4, mask_type: " +
      mask_type +
      "}\n"
      "  - !EpochRangeModifier {start_epoch: 0, end_epoch: 40}\n";
  return options;
}

struct Outcome {
  std::vector<double> losses;
  std::string bits;
  int num_records = 0;
  int products_before = 0, products = 0;  ///< before the last mask, and at the end
};

Outcome train(SmallRunOptions options, const FakeSemiSparse* operators, bool records) {
  Outcome outcome;
  tests::run_ranks(2, [&](dist::Communicator& comm) {
    SmallRunOptions own = options;
    const auto graph = records ? std::make_shared<FakeGraph>() : nullptr;
    own.graph = graph;
    SmallRun run(comm, own);
    std::vector<double> losses;
    for (int step = 0; step < kSteps; ++step) {
      if (step == kLastMask) {
        comm.barrier();
        if (comm.rank() == 0 && operators != nullptr)
          outcome.products_before = operators->num_products();
        comm.barrier();
      }
      losses.push_back(run.step().loss);
    }
    run.require_equal_ranks();
    const std::string bits = tests::bits_of(run.state());
    comm.barrier();
    if (comm.rank() != 0) return;
    outcome.losses = losses;
    outcome.bits = bits;
    if (graph != nullptr) outcome.num_records = graph->num_records;
    if (operators != nullptr) outcome.products = operators->num_products();
  });
  return outcome;
}

TEST(SemiSparseRun, UsesSparseProductsOnceTheMaskIsComplete) {
  const Outcome dense = train(options_of("2:4 transposable"), nullptr, /*records=*/false);
  const FakeSemiSparse operators;
  const Outcome sparse = train(options_of("2:4 transposable"), &operators, /*records=*/false);
  EXPECT_EQ(sparse.products_before, 0);
  // Two layers in forward, and the second one's inputs in backward, on two ranks.
  EXPECT_GE(sparse.products, 3 * 2 * (kSteps - kLastMask));
  for (size_t i = 0; i < dense.losses.size(); ++i)
    EXPECT_NEAR(sparse.losses[i], dense.losses[i], 2e-2) << i;
  EXPECT_NE(sparse.bits, dense.bits);
}

TEST(SemiSparseRun, RecordedPassesFollow) {
  const FakeSemiSparse operators;
  const Outcome plain = train(options_of("2:4 transposable"), &operators, /*records=*/false);
  const Outcome recorded = train(options_of("2:4 transposable"), &operators, /*records=*/true);
  EXPECT_EQ(recorded.losses, plain.losses);
  EXPECT_EQ(recorded.bits, plain.bits);
  EXPECT_EQ(recorded.num_records, 2);  // dense, then sparse
}

TEST(SemiSparseRun, AMaskAlongTheInputsAloneStaysDense) {
  const FakeSemiSparse operators;
  EXPECT_EQ(train(options_of("2:4"), &operators, /*records=*/false).products, 0);
}

}  // namespace semi_sparse_run_test
}  // namespace lockstep::train
