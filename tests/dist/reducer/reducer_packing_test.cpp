#include <cmath>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/simd/bit_mask.h"
#include "dist/reducer/gradient_reducer.h"
#include "tests/dist/reducer/flat_model.h"
#include "tests/dist/spy_communicator.h"
#include "tests/support/thread_world.h"

namespace lockstep::dist {
namespace reducer_packing_test {

using ::testing::HasSubstr;
using tests::FlatModel;

constexpr int64_t kWidth = 20;
constexpr int64_t kWeights = 4 * kWidth * kWidth;
constexpr int64_t kBiases = 4 * kWidth;
constexpr int64_t kShareBytes = 8 * (6 + kNumVotes);

/// Keeps llround((1 - sparsity) * kWeights) of the weights, spread out.
std::vector<uint8_t> mask_with(double sparsity) {
  std::vector<uint8_t> bits(static_cast<size_t>(num_mask_bytes(kWeights)));
  keep_all(bits.data(), kWeights);
  const auto num_dropped = std::llround(sparsity * kWeights);
  for (int64_t i = 0; i < num_dropped; ++i) drop(bits.data(), i * 7919 % kWeights);
  return bits;
}

GlobalStepStats one_step(FlatModel* model, GradientReducer* reducer) {
  model->zero_grads();
  reducer->prepare_for_backward();
  model->forward(at::cos(at::arange(3 * kWidth, at::kFloat)).view({3, kWidth})).sum().backward();
  return reducer->finish({.loss_sum = 1, .num_samples = 3});
}

class ReducerPacking : public ::testing::TestWithParam<int> {};

TEST_P(ReducerPacking, BytesFallWithTheKeptWeights) {
  for (const char* overlap : {"false", "true"})
    for (const double sparsity : {0.0, 0.5, 0.9, 0.99, 1.0})
      tests::run_ranks(GetParam(), [&](Communicator& comm) {
        FlatModel model(4, kWidth);
        GradientReducer reducer(
            comm, model.buffers, model.params,
            {.bucket_bytes = 1000, .overlap = overlap, .sparse_allreduce = "always"});
        reducer.set_kept(0, mask_with(sparsity));
        const GlobalStepStats totals = one_step(&model, &reducer);
        const double dense_bytes = 4.0 * kWeights, unpruned_bytes = 4.0 * kBiases + kShareBytes;
        EXPECT_LE(static_cast<double>(totals.bytes_reduced),
                  (1 - sparsity) * dense_bytes + unpruned_bytes + 1e-6);
        EXPECT_EQ(totals.bytes_reduced + totals.bytes_saved, dense_bytes + unpruned_bytes);
      });
}

TEST_P(ReducerPacking, AWireTypeHalvesThem) {
  tests::run_ranks(GetParam(), [](Communicator& comm) {
    FlatModel model(4, kWidth);
    GradientReducer reducer(
        comm, model.buffers, model.params,
        {.bucket_bytes = 1000, .sparse_allreduce = "always", .comm_dtype = "bf16"});
    EXPECT_EQ(one_step(&model, &reducer).bytes_reduced, 2 * (kWeights + kBiases) + kShareBytes);
    reducer.set_kept(0, mask_with(0.75));
    const GlobalStepStats totals = one_step(&model, &reducer);
    EXPECT_EQ(totals.bytes_reduced, 2 * (kWeights / 4 + kBiases) + kShareBytes);
    EXPECT_EQ(totals.bytes_saved, 4 * (kWeights + kBiases) + kShareBytes - totals.bytes_reduced);
  });
}

/// Whichever way wins, the bits are those of a dense run, every bucket was tried both ways, and the
/// verdict is one text on all ranks.
TEST_P(ReducerPacking, AutoTriesBothWaysAndStoresOneVerdict) {
  tests::run_ranks(GetParam(), [](Communicator& comm) {
    FlatModel model(4, kWidth), dense_model(4, kWidth);
    GradientReducer reducer(comm, model.buffers, model.params,
                            {.bucket_bytes = 1000, .overlap = "true", .sparse_allreduce = "auto"});
    GradientReducer dense(comm, dense_model.buffers, dense_model.params, tests::kWholeBuffers);
    reducer.set_kept(0, mask_with(0.9));
    dense.set_kept(0, mask_with(0.9));
    std::vector<int64_t> bytes_saved;
    for (int step = 0; step < 15; ++step) {
      bytes_saved.push_back(one_step(&model, &reducer).bytes_saved);
      one_step(&dense_model, &dense);
      EXPECT_TRUE(model.all_grads().equal(dense_model.all_grads())) << step;
    }
    for (int step = 0; step < 12; ++step)
      EXPECT_EQ(bytes_saved[static_cast<size_t>(step)], step % 2 == 0 ? 0 : 36 * kWeights / 10)
          << step;
    const std::string verdict = *reducer.state().at(0).text;
    EXPECT_EQ(verdict.size(), 17U + 9);  // 4 weights of 1600 bytes in 2 pieces each, biases
    EXPECT_EQ(bytes_saved[12], bytes_saved[14]);

    FlatModel again_model(4, kWidth);
    GradientReducer again(comm, again_model.buffers, again_model.params,
                          {.bucket_bytes = 1000, .overlap = "true", .sparse_allreduce = "auto"});
    *again.state().at(0).text = verdict;
    again.set_kept(0, mask_with(0.9));
    EXPECT_EQ(one_step(&again_model, &again).bytes_saved, bytes_saved[14])
        << "a run that goes on measures nothing";
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, ReducerPacking, ::testing::Values(2, 3, 4));

TEST(ReducerMasks, ThatDifferBetweenRanksAreFoundBeforeAnythingIsSent) {
  std::atomic<int> num_told = 0;
  tests::run_ranks(3, [&](Communicator& comm) {
    tests::SpyCommunicator spy(comm);
    FlatModel model(4, kWidth);
    GradientReducer reducer(spy, model.buffers, model.params, {.sparse_allreduce = "always"});
    std::vector<uint8_t> bits = mask_with(0.9);
    if (comm.rank() == 2) bits[3] ^= 1;
    reducer.set_kept(0, bits);
    try {
      reducer.prepare_for_backward();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kDisagree);
      EXPECT_TRUE(error.on_every_rank());
      EXPECT_THAT(error.what(), HasSubstr("different masks"));
      ++num_told;
    }
    EXPECT_EQ(spy.num_reductions, 1);
  });
  EXPECT_EQ(num_told, 3);
}

TEST(ReducerMasks, AreForTheirBuffersOnly) {
  tests::run_ranks(2, [](Communicator& comm) {
    FlatModel model(4, kWidth), other(4, kWidth);
    GradientReducer reducer(comm, model.buffers, model.params, {.sparse_allreduce = "always"});
    EXPECT_THROW(reducer.set_kept(0, std::vector<uint8_t>(3)), Error);
    EXPECT_THROW(reducer.set_kept(2, {}), std::out_of_range);
    reducer.set_kept(0, mask_with(0.9));
    EXPECT_GT(one_step(&model, &reducer).bytes_saved, 0);
    reducer.set_kept(0, {});
    EXPECT_EQ(one_step(&model, &reducer).bytes_saved, 0) << "all kept again";
    reducer.set_kept(0, mask_with(0.9));
    for (size_t i = 0; i < 2; ++i) model.buffers[i].grads_E = other.buffers[i].grads_E;
    reducer.prepare_for_backward();
    EXPECT_EQ(reducer.finish({.loss_sum = 1, .num_samples = 1}).bytes_saved, 0)
        << "buffers that were rebuilt have no masks";
  });
}

}  // namespace reducer_packing_test
}  // namespace lockstep::dist
