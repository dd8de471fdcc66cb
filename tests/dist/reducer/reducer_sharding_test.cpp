// GradientReducer with divided buckets; that it gives the bits of undivided ones is shown by
// tests/dist/reducer/reducer_contract.cpp.
#include <atomic>
#include <cmath>
#include <limits>

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
namespace reducer_sharding_test {

using ::testing::HasSubstr;
using tests::FlatModel;
using tests::SpyCommunicator;

constexpr int64_t kWidth = 20;
constexpr int64_t kWeights = 4 * kWidth * kWidth;
constexpr int64_t kBiases = 4 * kWidth;
constexpr int64_t kShareBytes = 8 * (6 + kNumVotes);
constexpr int64_t kVerdictBytes = 8;

SyncOptions sharded(int64_t bucket_bytes, const char* packed = "never") {
  return {.bucket_bytes = bucket_bytes, .sparse_allreduce = packed, .shard_optimizer = true};
}

/// Drops so many of each 100 weights.
std::vector<uint8_t> mask_with(int64_t percent_dropped) {
  std::vector<uint8_t> bits(static_cast<size_t>(num_mask_bytes(kWeights)));
  keep_all(bits.data(), kWeights);
  for (int64_t i = 0; i < kWeights; ++i)
    if (i * 37 % 100 < percent_dropped) drop(bits.data(), i);
  return bits;
}

GlobalStepStats one_step(FlatModel* model, GradientReducer* reducer,
                         const StepRequests& requests = {}) {
  model->zero_grads();
  reducer->prepare_for_backward(requests);
  model->forward(at::cos(at::arange(3 * kWidth, at::kFloat)).view({3, kWidth})).sum().backward();
  return reducer->finish({.loss_sum = 1, .num_samples = 3});
}

class ReducerSharding : public ::testing::TestWithParam<int> {};

/// The mask keeps the same share of each row, so that no piece has more than its part.
TEST_P(ReducerSharding, BytesFallWithTheKeptWeightsBothWays) {
  for (const int64_t bucket_bytes : {1700, 1 << 20})
    for (const int64_t dropped : {0, 50, 90, 100})
      tests::run_ranks(GetParam(), [&](Communicator& comm) {
        FlatModel model(4, kWidth);
        GradientReducer reducer(comm, model.buffers, model.params, sharded(bucket_bytes, "always"));
        reducer.set_kept(0, mask_with(dropped));
        const GlobalStepStats totals = one_step(&model, &reducer);
        const GatherTotals gathered = reducer.gather_values();
        const int64_t dense_bytes = 4 * kWeights, unpruned_bytes = 4 * kBiases;
        const int64_t kept_bytes = dense_bytes * (100 - dropped) / 100;
        EXPECT_LE(totals.bytes_reduced, kept_bytes + unpruned_bytes + kShareBytes + kVerdictBytes);
        EXPECT_LE(gathered.bytes_gathered, kept_bytes + unpruned_bytes);
        EXPECT_EQ(totals.bytes_reduced + totals.bytes_saved,
                  dense_bytes + unpruned_bytes + kShareBytes + kVerdictBytes);
        EXPECT_EQ(gathered.bytes_gathered + gathered.bytes_saved, dense_bytes + unpruned_bytes);
        const int64_t n = comm.world_size();
        EXPECT_EQ(totals.bytes_sent,
                  (n - 1) * (totals.bytes_reduced + kShareBytes + kVerdictBytes) / n)
            << "gradients go one way only";
      });
}

INSTANTIATE_TEST_SUITE_P(Worlds, ReducerSharding, ::testing::Values(2, 4));

/// Rows do not divide evenly among three: messages are as long as three of the largest piece.
TEST(ReducerSharding, UnevenPiecesArePadded) {
  tests::run_ranks(3, [](Communicator& comm) {
    FlatModel model(4, kWidth);
    GradientReducer reducer(comm, model.buffers, model.params, sharded(1 << 20));
    const int64_t padded = 3 * 4 * (27 * kWidth + 27);  // of 80 rows and 80 biases
    EXPECT_EQ(one_step(&model, &reducer).bytes_reduced, padded + kShareBytes + kVerdictBytes);
    EXPECT_EQ(reducer.gather_values().bytes_gathered, padded);
  });
}

/// A parameter of one row, [1, 5000], is cut inside; the bits are those of one that is not divided.
TEST(ReducerSharding, ALongRowIsDividedToo) {
  for (const char* wire : {"fp32", "bf16"})
    for (const int num_ranks : {2, 3, 4})
      tests::run_ranks(num_ranks, [&](Communicator& comm) {
        const at::Tensor values_E = at::cos(at::arange(5'000, at::kFloat));
        const at::Tensor grads_E = at::sin(at::arange(5'000, at::kFloat) * (comm.rank() + 0.3));
        const ParamTable params{{.name = "long", .tensor = values_E.view({1, 5'000})}};
        std::vector<FlatBuffer> whole_buffers{
            {.values_E = values_E.clone(), .grads_E = grads_E.clone(), .slices = {{0, 0, 5'000}}}},
            buffers{{.values_E = values_E.clone(),
                     .grads_E = grads_E.clone(),
                     .slices = {{0, 0, 5'000}}}};
        SyncOptions options{
            .bucket_bytes = 12'000, .sparse_allreduce = "never", .comm_dtype = wire};
        GradientReducer whole(comm, whole_buffers, params, options);
        options.shard_optimizer = true;
        GradientReducer reducer(comm, buffers, params, options);
        whole.prepare_for_backward({.squared_grad_norm = true});
        reducer.prepare_for_backward({.squared_grad_norm = true});
        const auto expected = whole.finish({.loss_sum = 1, .num_samples = 3});
        const auto found = reducer.finish({.loss_sum = 1, .num_samples = 3});
        EXPECT_EQ(found.squared_grad_norm, expected.squared_grad_norm);
        EXPECT_LE(reducer.local_shards().size(), 2U) << "one of each bucket";
        for (const ParamShard& own : reducer.local_shards()) {
          const auto part = [&](const at::Tensor& flat_E) {
            return flat_E.slice(0, own.begin_E, own.end_E);
          };
          EXPECT_TRUE(part(buffers[0].grads_E).equal(part(whole_buffers[0].grads_E)));
          part(buffers[0].values_E).sub_(part(buffers[0].grads_E));
        }
        reducer.gather_values();
        EXPECT_TRUE(buffers[0].values_E.equal(values_E - whole_buffers[0].grads_E));
      });
}

TEST(ReducerSharding, AWireTypeHalvesGradientsOnly) {
  tests::run_ranks(2, [](Communicator& comm) {
    FlatModel model(4, kWidth);
    SyncOptions options = sharded(1700);
    options.comm_dtype = "bf16";
    GradientReducer reducer(comm, model.buffers, model.params, options);
    EXPECT_EQ(one_step(&model, &reducer).bytes_reduced,
              2 * (kWeights + kBiases) + kShareBytes + kVerdictBytes);
    EXPECT_EQ(reducer.gather_values().bytes_gathered, 4 * (kWeights + kBiases));
  });
}

/// Rank 1 alone sees the bad value.
TEST(ReducerSharding, OneOwnersGradientThatIsNotFiniteIsEveryRanksVerdict) {
  for (const bool wants_squares : {false, true})
    for (const double bad :
         {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
      for (const int num_ranks : {2, 3, 4})
        tests::run_ranks(num_ranks, [&](Communicator& comm) {
          FlatModel model(4, kWidth);
          GradientReducer reducer(comm, model.buffers, model.params, sharded(1700));
          const std::vector<ParamShard> owned = reducer.local_shards();
          const at::Tensor place =
              at::full({1}, comm.rank() == 1 ? owned[0].begin_E : 0, at::kLong);
          comm.all_reduce(place, ReduceOp::kSum)->wait();
          reducer.prepare_for_backward({.squared_grad_norm = wants_squares});
          if (comm.rank() == 0) model.buffers[0].grads_E[place.item<int64_t>()] = bad;
          const GlobalStepStats totals = reducer.finish({.loss_sum = 1, .num_samples = 3});
          EXPECT_FALSE(totals.gradients_finite);
          EXPECT_EQ(totals.num_nonfinite_ranks, 0);
          EXPECT_EQ(totals.squared_grad_norm.has_value(), wants_squares);
          EXPECT_TRUE(!wants_squares || std::isnan(*totals.squared_grad_norm));
          EXPECT_TRUE(one_step(&model, &reducer).finite()) << "the next step is a new one";
        });
}

TEST(ReducerSharding, TheSquareSumIsThatOfTheMeanGradient) {
  tests::run_ranks(3, [](Communicator& comm) {
    FlatModel model(4, kWidth), whole_model(4, kWidth);
    GradientReducer reducer(comm, model.buffers, model.params, sharded(1700));
    GradientReducer whole(comm, whole_model.buffers, whole_model.params, {});
    EXPECT_FALSE(one_step(&whole_model, &whole).squared_grad_norm.has_value());
    const GlobalStepStats totals = one_step(&model, &reducer, {.squared_grad_norm = true});
    EXPECT_EQ(one_step(&whole_model, &whole, {.squared_grad_norm = true}).squared_grad_norm,
              totals.squared_grad_norm);
    const double expected = whole_model.all_grads().to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(*totals.squared_grad_norm / expected, 1, 1e-13);
  });
}

TEST(ReducerSharding, OwnedRegionsAreRowsAndFollowTheBuffers) {
  tests::run_ranks(2, [](Communicator& comm) {
    FlatModel model(4, kWidth);
    GradientReducer reducer(comm, model.buffers, model.params, sharded(1 << 20));
    const int64_t r = comm.rank();
    EXPECT_EQ(reducer.local_shards(),
              (std::vector<ParamShard>{{0, r * kWeights / 2, (r + 1) * kWeights / 2},
                                       {1, r * kBiases / 2, (r + 1) * kBiases / 2}}));
    model.buffers[0].frozen = true;
    model.buffers[0].grads_E = at::Tensor();
    EXPECT_EQ(reducer.local_shards(),
              (std::vector<ParamShard>{{1, r * kBiases / 2, (r + 1) * kBiases / 2}}));

    FlatModel whole_model(4, kWidth);
    GradientReducer whole(comm, whole_model.buffers, whole_model.params, {.bucket_bytes = 1700});
    EXPECT_EQ(whole.local_shards(), (std::vector<ParamShard>{{0, 0, kWeights}, {1, 0, kBiases}}))
        << "buckets of one region";
  });
}

TEST(ReducerSharding, FrozenValuesDoNotTravel) {
  tests::run_ranks(2, [](Communicator& comm) {
    FlatModel model(4, kWidth);
    GradientReducer reducer(comm, model.buffers, model.params, sharded(1 << 20));
    for (Param& param : model.params)
      if (param.decayed) {
        param.tensor.mutable_grad() = at::Tensor();
        param.tensor.set_requires_grad(false);
      }
    model.buffers[0].frozen = true;
    model.buffers[0].grads_E = at::Tensor();
    const at::Tensor before = model.buffers[0].values_E.clone();
    one_step(&model, &reducer);
    EXPECT_EQ(reducer.gather_values().bytes_gathered, 4 * kBiases);
    EXPECT_TRUE(model.buffers[0].values_E.equal(before));
  });
}

TEST(ReducerSharding, OneRankOwnsAllAndSendsNothing) {
  tests::run_ranks(1, [](Communicator& comm) {
    FlatModel model(4, kWidth);
    GradientReducer reducer(comm, model.buffers, model.params, sharded(1700));
    EXPECT_EQ(reducer.local_shards(), (std::vector<ParamShard>{{0, 0, kWeights}, {1, 0, kBiases}}));
    EXPECT_EQ(one_step(&model, &reducer).bytes_reduced, 4 * (kWeights + kBiases) + kShareBytes);
    EXPECT_EQ(reducer.gather_values().bytes_gathered, 0);
  });
}

TEST(ReducerSharding, PackedValuesAreZeroWhereTheyArePruned) {
  tests::run_ranks(4, [](Communicator& comm) {
    FlatModel model(4, kWidth);
    GradientReducer reducer(comm, model.buffers, model.params, sharded(1700, "always"));
    const std::vector<uint8_t> bits = mask_with(90);
    at::Tensor& values_E = model.buffers[0].values_E;
    zero_pruned(values_E.mutable_data_ptr(), bits.data(), kWeights, 4);
    reducer.set_kept(0, bits);
    one_step(&model, &reducer);
    const at::Tensor expected_E = values_E + comm.world_size();
    for (const ParamShard& own : reducer.local_shards())
      if (own.buffer == 0) values_E.slice(0, own.begin_E, own.end_E).add_(comm.world_size());
    zero_pruned(values_E.mutable_data_ptr(), bits.data(), kWeights, 4);
    reducer.gather_values();
    for (int64_t i = 0; i < kWeights; ++i) {
      const auto value = values_E[i].item<float>();
      if (is_kept(bits.data(), i)) {
        EXPECT_EQ(value, expected_E[i].item<float>()) << i;
      } else {
        EXPECT_TRUE(value == 0 && !std::signbit(value)) << i;
      }
    }
  });
}

/// New masks between an update and its gathering: nothing is agreed about them yet.
TEST(ReducerSharding, ValuesTravelWholeUntilNewMasksAreInUse) {
  tests::run_ranks(2, [](Communicator& comm) {
    FlatModel model(4, kWidth);
    GradientReducer reducer(comm, model.buffers, model.params, sharded(1 << 20, "always"));
    reducer.set_kept(0, mask_with(90));
    one_step(&model, &reducer);
    EXPECT_EQ(reducer.gather_values().bytes_gathered, 4 * (kWeights / 10 + kBiases));
    reducer.set_kept(0, {});
    EXPECT_EQ(reducer.gather_values().bytes_gathered, 4 * (kWeights + kBiases));
    one_step(&model, &reducer);
    EXPECT_EQ(reducer.gather_values().bytes_gathered, 4 * (kWeights + kBiases));
  });
}

TEST(ReducerSharding, CallsOutOfTurnAreBugs) {
  tests::run_ranks(1, [](Communicator& comm) {
    FlatModel model(4, kWidth);
    GradientReducer reducer(comm, model.buffers, model.params, sharded(1700));
    reducer.prepare_for_backward();
    EXPECT_THROW(reducer.gather_values(), Error);
    EXPECT_THROW(reducer.local_shards(), Error);
  });
}

/// Message of the error that `part` throws.
std::string text_thrown(const std::function<void()>& part) {
  try {
    part();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUnavailable);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(ReducerErrors, NameTheBucket) {
  for (const char* overlap : {"false", "true"})
    for (const bool shard : {false, true})
      tests::run_ranks(2, [&](Communicator& comm) {
        SpyCommunicator spy(comm);
        spy.before_reduction = [](int number) {
          if (number == 1) throw Error(ExitCode::kUnavailable, "test", "the wire is cut");
        };
        FlatModel model(4, kWidth);
        GradientReducer reducer(spy, model.buffers, model.params,
                                {.bucket_bytes = 1700,
                                 .overlap = overlap,
                                 .sparse_allreduce = "never",
                                 .shard_optimizer = shard});
        EXPECT_EQ(text_thrown([&] { one_step(&model, &reducer); }),
                  "[test] the wire is cut (while reducing bucket 2 of 5: layers.2.weight)");
      });
}

TEST(ReducerErrors, NameTheBucketWhoseValuesAreGathered) {
  tests::run_ranks(2, [&](Communicator& comm) {
    SpyCommunicator spy(comm);
    FlatModel model(4, kWidth);
    GradientReducer reducer(spy, model.buffers, model.params, sharded(1700));
    one_step(&model, &reducer);
    spy.before_gather = [] { throw Error(ExitCode::kUnavailable, "test", "the wire is cut"); };
    EXPECT_EQ(text_thrown([&] { reducer.gather_values(); }),
              "[test] the wire is cut (while gathering the values of bucket 1 of 5: "
              "layers.3.weight)");
  });
}

}  // namespace reducer_sharding_test
}  // namespace lockstep::dist
