#include "dist/reducer/gradient_reducer.h"

#include <limits>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/dist/reducer/flat_model.h"
#include "tests/support/thread_world.h"

namespace lockstep::dist {
namespace gradient_reducer_test {

using ::testing::ElementsAre;

constexpr int64_t kShareBytes = 8 * (6 + kNumVotes);

/// A model with a weight [3, 4] and a bias [3] whose gradients are views of two flat buffers. For
/// sample value x the gradient of every weight is x times its place (from 1), that of every bias is
/// -x.
struct RankModel {
  RankModel() : buffers(2) {
    buffers[0].grads_E = at::zeros({12}, at::kFloat);
    buffers[1].grads_E = at::zeros({3}, at::kFloat);
    weight_grad = buffers[0].grads_E.view({3, 4});
    bias_grad = buffers[1].grads_E.view({3});
  }

  void backward(const std::vector<double>& samples) {
    for (const double x : samples) {
      weight_grad.add_((at::arange(12, at::kFloat) + 1).view({3, 4}), x);
      bias_grad.sub_(x);
    }
  }

  ParamTable params;  ///< empty: the buffers have no slices
  std::vector<FlatBuffer> buffers;
  at::Tensor weight_grad, bias_grad;
};

/// Rank r's part of `samples`, cut as unevenly as possible: rank 0 gets what the others, one each,
/// leave.
std::vector<double> part_of(const std::vector<double>& samples, int rank, int num_ranks) {
  const auto num_first = static_cast<int64_t>(samples.size()) - num_ranks + 1;
  if (rank == 0) return {samples.begin(), samples.begin() + num_first};
  return {samples[num_first + rank - 1]};
}

double sum_of_samples(const std::vector<double>& samples) {
  return std::accumulate(samples.begin(), samples.end(), 0.0);
}

class Reducer : public ::testing::TestWithParam<int> {};

TEST_P(Reducer, GivesTheMeanOverUnevenPartsThatOneRankWouldHave) {
  const std::vector<double> samples{1, 2, 3, 4, 5, 6, 7};  // mean 4; all sums are exact
  tests::run_ranks(GetParam(), [&](Communicator& comm) {
    RankModel model;
    GradientReducer reducer(comm, model.buffers, model.params, tests::kWholeBuffers);
    const std::vector<double> mine = part_of(samples, comm.rank(), comm.world_size());
    reducer.prepare_for_backward();
    model.backward(mine);
    const GlobalStepStats totals = reducer.finish(
        {.loss_sum = sum_of_samples(mine), .num_samples = static_cast<int64_t>(mine.size())});
    EXPECT_EQ(totals.num_samples, 7);
    EXPECT_EQ(totals.loss_mean, 4.0);
    EXPECT_TRUE(totals.finite());
    EXPECT_GE(totals.wait_s, 0.0);
    EXPECT_TRUE(model.weight_grad.equal((at::arange(12, at::kFloat) + 1).view({3, 4}) * 4))
        << model.weight_grad;
    EXPECT_TRUE(model.bias_grad.equal(at::full({3}, -4, at::kFloat))) << model.bias_grad;
  });
}

/// Callers that weight the losses before backward divide by 1, or by the loss scale. The loss is
/// still divided by the step's own count of samples.
TEST_P(Reducer, DividesGradientsByWhatIsGivenAndTheLossBySamples) {
  tests::run_ranks(GetParam(), [](Communicator& comm) {
    const SyncOptions small_buckets{
        .bucket_bytes = 16, .overlap = "true", .sparse_allreduce = "never"};
    for (const SyncOptions& options : {tests::kWholeBuffers, small_buckets})
      for (const int64_t divisor : {1, 4, 1 << 16}) {
        RankModel model;
        GradientReducer reducer(comm, model.buffers, model.params, options);
        reducer.prepare_for_backward();
        model.backward({8});
        const GlobalStepStats totals =
            reducer.finish({.loss_sum = 6, .num_samples = 3, .gradient_divisor = divisor});
        EXPECT_EQ(totals.loss_mean, 2.0);
        const double factor = 8.0 * comm.world_size() / static_cast<double>(divisor);
        EXPECT_TRUE(model.weight_grad.equal((at::arange(12, at::kFloat) + 1).view({3, 4}) * factor))
            << divisor;
        EXPECT_TRUE(model.bias_grad.equal(at::full({3}, -factor, at::kFloat))) << divisor;
      }
  });
}

TEST_P(Reducer, TellsTheSecondsOfEachBucket) {
  tests::run_ranks(GetParam(), [](Communicator& comm) {
    RankModel model;
    const SyncOptions small_buckets{
        .bucket_bytes = 16, .overlap = "false", .sparse_allreduce = "never"};
    GradientReducer reducer(comm, model.buffers, model.params, small_buckets);
    reducer.prepare_for_backward();
    const GlobalStepStats totals = reducer.finish({.loss_sum = 1, .num_samples = 1});
    ASSERT_EQ(totals.bucket_s.size(), 4u);  // 4 of 12 weights each, and 3 biases
    EXPECT_NEAR(std::accumulate(totals.bucket_s.begin(), totals.bucket_s.end(), 0.0),
                totals.reduce_s, 1e-9);
  });
}

TEST_P(Reducer, ARankThatWorksMuchLongerThanTheOthersIsAStraggler) {
  tests::run_ranks(GetParam(), [](Communicator& comm) {
    RankModel model;
    GradientReducer reducer(comm, model.buffers, model.params, tests::kWholeBuffers);
    const auto is_straggler = [&](double work_of_last_s) {
      const bool is_last = comm.rank() == comm.world_size() - 1;
      reducer.prepare_for_backward();
      const GlobalStepStats totals =
          reducer.finish({.loss_sum = 1, .num_samples = 1, .work_s = is_last ? work_of_last_s : 2});
      EXPECT_EQ(totals.work_s, 2 * (comm.world_size() - 1) + work_of_last_s);
      return std::pair(is_last, totals.is_straggler(comm.world_size()));
    };
    const auto [is_last, is_slow] = is_straggler(2.75);
    EXPECT_EQ(is_slow, is_last && comm.world_size() > 1);
    EXPECT_FALSE(is_straggler(2.5).second);
  });
}

TEST_P(Reducer, CountsItsBytesStepByStep) {
  tests::run_ranks(GetParam(), [](Communicator& comm) {
    RankModel model;
    GradientReducer reducer(comm, model.buffers, model.params, tests::kWholeBuffers);
    for (int step = 0; step < 3; ++step) {
      reducer.prepare_for_backward();
      EXPECT_EQ(reducer.finish({.loss_sum = 1, .num_samples = 1}).bytes_reduced,
                (12 + 3) * 4 + kShareBytes);
    }
  });
}

TEST_P(Reducer, CountsVotesOfEachKind) {
  tests::run_ranks(GetParam(), [](Communicator& comm) {
    RankModel model;
    GradientReducer reducer(comm, model.buffers, model.params, tests::kWholeBuffers);
    reducer.prepare_for_backward();
    const uint32_t mine = 1U << 7 | (comm.rank() == 0 ? 1U << 2 : 0U);
    const auto totals = reducer.finish({.loss_sum = 1, .num_samples = 1, .votes = mine});
    EXPECT_THAT(totals.votes, ElementsAre(0, 0, 1, 0, 0, 0, 0, comm.world_size()));
  });
}

TEST_P(Reducer, OneRanksLossThatIsNotFiniteIsEveryRanksVerdict) {
  tests::run_ranks(GetParam(), [](Communicator& comm) {
    RankModel model;
    GradientReducer reducer(comm, model.buffers, model.params, tests::kWholeBuffers);
    const bool is_last = comm.rank() + 1 == comm.world_size();
    reducer.prepare_for_backward();
    const auto told = reducer.finish({.loss_sum = 1, .num_samples = 1, .finite = !is_last});
    EXPECT_EQ(told.num_nonfinite_ranks, 1);
    EXPECT_FALSE(told.finite());
    EXPECT_TRUE(told.gradients_finite);

    reducer.prepare_for_backward();
    const double loss = is_last ? std::numeric_limits<double>::quiet_NaN() : 1.0;
    EXPECT_EQ(reducer.finish({.loss_sum = loss, .num_samples = 1}).num_nonfinite_ranks, 1);
  });
}

TEST_P(Reducer, OneRanksGradientThatIsNotFiniteIsEveryRanksVerdict) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
    tests::run_ranks(GetParam(), [&](Communicator& comm) {
      RankModel model;
      GradientReducer reducer(comm, model.buffers, model.params, tests::kWholeBuffers);
      reducer.prepare_for_backward();
      if (comm.rank() == 0) model.weight_grad[2][3] = bad;
      const GlobalStepStats totals = reducer.finish({.loss_sum = 1, .num_samples = 1});
      EXPECT_EQ(totals.num_nonfinite_ranks, 0);
      EXPECT_FALSE(totals.gradients_finite);
      EXPECT_FALSE(totals.finite());
    });
  }
}

TEST_P(Reducer, ARankMayHaveNoSamples) {
  tests::run_ranks(GetParam(), [](Communicator& comm) {
    RankModel model;
    GradientReducer reducer(comm, model.buffers, model.params, tests::kWholeBuffers);
    reducer.prepare_for_backward();
    if (comm.rank() == 0) model.backward({6, 8});
    const GlobalStepStats totals = reducer.finish(
        comm.rank() == 0 ? LocalStepStats{.loss_sum = 14, .num_samples = 2} : LocalStepStats{});
    EXPECT_EQ(totals.num_samples, 2);
    EXPECT_EQ(totals.loss_mean, 7.0);
    EXPECT_TRUE(model.bias_grad.equal(at::full({3}, -7, at::kFloat)));
  });
}

TEST_P(Reducer, SixteenBitBuffersAreDividedInFloat32) {
  tests::run_ranks(GetParam(), [](Communicator& comm) {
    std::vector<FlatBuffer> buffers(1);
    buffers[0].grads_E = at::full({5}, 100, at::kBFloat16);
    const ParamTable no_params;
    GradientReducer reducer(comm, buffers, no_params, tests::kWholeBuffers);
    reducer.prepare_for_backward();
    reducer.finish({.loss_sum = 1, .num_samples = 3});
    EXPECT_TRUE(buffers[0].grads_E.equal(at::full({5}, 100.0 / 3, at::kBFloat16)))
        << buffers[0].grads_E;
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Reducer, ::testing::Values(1, 2, 4));

TEST(ReducerCalls, OutOfTurnAreBugs) {
  tests::run_ranks(2, [](Communicator& comm) {
    RankModel model;
    GradientReducer reducer(comm, model.buffers, model.params, tests::kWholeBuffers);
    EXPECT_THROW(reducer.finish({.loss_sum = 1, .num_samples = 1}), Error);
    reducer.prepare_for_backward();
    EXPECT_THROW(reducer.prepare_for_backward(), Error);
    EXPECT_THROW(reducer.finish({}), Error) << "no samples on any rank";
  });
}

TEST(ReducerBuffers, MayBeRebuiltBetweenSteps) {
  tests::run_ranks(2, [](Communicator& comm) {
    RankModel model;
    GradientReducer reducer(comm, model.buffers, model.params, tests::kWholeBuffers);
    reducer.prepare_for_backward();
    reducer.finish({.loss_sum = 1, .num_samples = 1});
    model.buffers.pop_back();  // the biases are frozen
    reducer.prepare_for_backward();
    EXPECT_EQ(reducer.finish({.loss_sum = 1, .num_samples = 1}).bytes_reduced,
              12 * 4 + kShareBytes);
  });
}

}  // namespace gradient_reducer_test
}  // namespace lockstep::dist
