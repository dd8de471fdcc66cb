#include <atomic>
#include <chrono>
#include <limits>
#include <thread>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "dist/reducer/gradient_reducer.h"
#include "tests/dist/reducer/flat_model.h"
#include "tests/dist/spy_communicator.h"
#include "tests/support/thread_world.h"

/// Means that come one bucket after another (StepRequests::by_bucket).
namespace lockstep::dist {
namespace reducer_by_bucket_test {

using tests::FlatModel;
using tests::SpyCommunicator;

constexpr int64_t kWidth = 12;
constexpr int64_t kShareBytes = 8 * (6 + kNumVotes);

SyncOptions overlapping(int64_t bucket_bytes) {
  return {.bucket_bytes = bucket_bytes, .overlap = "true", .sparse_allreduce = "never"};
}

at::Tensor some_inputs() { return at::cos(at::arange(2 * kWidth, at::kFloat)).view({2, kWidth}); }

at::Tensor loss_of(const FlatModel& model) { return model.forward(some_inputs()).square().sum(); }

class ReducerByBucket : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ReducerByBucket, ::testing::Values(1, 2, 3, 4));

/// The last bucket is held back until finish() has told the verdict and the others' means.
TEST_P(ReducerByBucket, FinishReturnsBeforeTheLastBucketHasTravelled) {
  tests::run_ranks(GetParam(), [](Communicator& comm) {
    FlatModel model, at_once;
    loss_of(at_once).backward();
    {
      GradientReducer reducer(comm, at_once.buffers, at_once.params, {.overlap = "false"});
      reducer.prepare_for_backward();
      reducer.finish({.loss_sum = 1, .num_samples = 2, .gradient_divisor = 3});
    }
    SpyCommunicator spy(comm);
    std::atomic<bool> may_go = false;
    spy.before_reduction = [&](int number) {
      if (number == 4 + 1) may_go.wait(false);
    };
    GradientReducer reducer(spy, model.buffers, model.params, overlapping(kWidth * kWidth * 4));
    reducer.prepare_for_backward({.by_bucket = true});
    loss_of(model).backward();
    if (comm.world_size() == 1) may_go = true, may_go.notify_all();  // alone nothing is late
    GlobalStepStats totals =
        reducer.finish({.loss_sum = 1, .num_samples = 2, .gradient_divisor = 3});
    EXPECT_TRUE(totals.finite());
    EXPECT_EQ(totals.num_samples, 2 * comm.world_size());
    const PendingShards late = reducer.pending_shards();
    if (comm.world_size() > 1) {
      // The first layer's weights: the biases, whose first parameter follows them, come before.
      EXPECT_EQ(spy.num_reductions, 4 + 1);
      EXPECT_EQ(late.regions,
                (std::vector<ParamShard>{{0, 3 * kWidth * kWidth, 4 * kWidth * kWidth}}));
      EXPECT_TRUE(model.buffers[1].grads_E.equal(at_once.buffers[1].grads_E));
      EXPECT_TRUE(model.weight(3).grad().equal(at_once.weight(3).grad()));
      EXPECT_THROW(reducer.prepare_for_backward(), Error);
      may_go = true;
      may_go.notify_all();
      late.wait_for_next();
    } else {
      EXPECT_TRUE(late.regions.empty());
    }
    reducer.finish_late(&totals);
    EXPECT_TRUE(model.all_grads().equal(at_once.all_grads()));
    const int64_t num_bytes = 4 * (kWidth * kWidth + kWidth) * 4 + kShareBytes;
    EXPECT_EQ(totals.bytes_reduced, num_bytes + (comm.world_size() > 1 ? 8 : 0));
    EXPECT_EQ(spy.num_reductions, 4 + 1 + 1);
    EXPECT_EQ(totals.bucket_s.size(), 5U);
  });
}

/// The verdict is that of a step that waits for all gradients, for any value of a late gradient.
TEST_P(ReducerByBucket, WaitsForAllWhereTheVerdictIsOpen) {
  constexpr float kHuge = 3e38F, kInfinite = std::numeric_limits<float>::infinity();
  for (const float bad : {kHuge, kInfinite, std::numeric_limits<float>::quiet_NaN()})
    tests::run_ranks(GetParam(), [=](Communicator& comm) {
      FlatModel model;
      GradientReducer reducer(comm, model.buffers, model.params, overlapping(kWidth * kWidth * 4));
      reducer.prepare_for_backward({.by_bucket = true});
      loss_of(model).backward();
      if (bad == kHuge || comm.rank() == 0) {
        const at::NoGradGuard no_grad;
        model.weight(0).mutable_grad().fill_(bad);  // not sent before finish()
      }
      GlobalStepStats totals =
          reducer.finish({.loss_sum = 1, .num_samples = 2, .gradient_divisor = 3});
      EXPECT_TRUE(reducer.pending_shards().regions.empty()) << bad;
      EXPECT_EQ(totals.finite(), bad == kHuge && comm.world_size() == 1) << bad;
      reducer.finish_late(&totals);
    });
}

/// Some ranks have no samples, leave a step, have damaged samples or a gradient that is not finite.
TEST(ReducerLateShards, RanksThatDifferAgreeWithAStepThatWaitsForAll) {
  tests::run_ranks(3, [](Communicator& comm) {
    FlatModel early, at_once;
    GradientReducer by_bucket(comm, early.buffers, early.params, overlapping(576));
    GradientReducer whole(comm, at_once.buffers, at_once.params, {.overlap = "false"});
    int num_late = 0, num_not_finite = 0;
    for (int step = 0; step < 100; ++step) {
      const bool has_samples =
          (step + comm.rank()) % 3 != 0 && (step % 10 != 9 || comm.rank() != 1);
      const at::Tensor inputs_BX = at::cos(some_inputs() + step + comm.rank());
      const auto backward = [&](FlatModel* model) {
        model->zero_grads();
        if (has_samples) model->forward(inputs_BX).square().sum().backward();
        const at::NoGradGuard no_grad;
        if (step % 11 == 10 && comm.rank() == 0)
          model->weight(0).mutable_grad().fill_(std::numeric_limits<float>::quiet_NaN());
      };
      const LocalStepStats share{.loss_sum = 1,
                                 .num_samples = has_samples ? 2 : 0,
                                 .num_skipped = step % 7 == 6 && comm.rank() == 2 ? 1 : 0,
                                 .gradient_divisor = 3,
                                 .expected_samples = 4};
      by_bucket.prepare_for_backward({.by_bucket = true});
      backward(&early);
      GlobalStepStats totals = by_bucket.finish(share);
      const PendingShards late = by_bucket.pending_shards();
      for (size_t i = 0; i < late.regions.size(); ++i) late.wait_for_next();
      by_bucket.finish_late(&totals);
      num_late += late.regions.empty() ? 0 : 1;
      whole.prepare_for_backward();
      backward(&at_once);
      const GlobalStepStats expected = whole.finish(share);
      EXPECT_EQ(totals.finite(), expected.finite()) << step;
      EXPECT_EQ(totals.is_complete, expected.is_complete) << step;
      if (expected.finite()) {
        EXPECT_TRUE(early.all_grads().equal(at_once.all_grads())) << step;
      }
      num_not_finite += expected.finite() ? 0 : 1;
    }
    EXPECT_GT(num_late, 10);
    EXPECT_GT(num_not_finite, 10);
  });
}

/// Overlap wins by less than the update takes, which a step without overlap has behind it.
TEST(ReducerLateShards, AutoDoesNotCountAnUpdateBesideTheLastBucket) {
  const auto sleep_ms = [](int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
  tests::run_ranks(2, [&](Communicator& comm) {
    SpyCommunicator spy(comm);
    spy.before_reduction = [&](int) { sleep_ms(8); };
    FlatModel model(4, 300);
    GradientReducer reducer(spy, model.buffers, model.params, {.bucket_bytes = 300 * 300 * 4});
    bool is_late = false;
    for (int step = 0; step < 13; ++step) {
      model.zero_grads();
      reducer.prepare_for_backward({.by_bucket = true});
      at::Tensor x = at::ones({2, 300});
      for (int64_t layer = 0; layer < 4; ++layer) {
        x = at::tanh(at::linear(x, model.weight(layer), model.bias(layer)));
        x.register_hook([&](const at::Tensor& grad) { return sleep_ms(12), grad; });
      }
      x.square().sum().backward();
      GlobalStepStats totals =
          reducer.finish({.loss_sum = 1, .num_samples = 2, .gradient_divisor = 1});
      const PendingShards late = reducer.pending_shards();
      sleep_ms(60);  // the update
      is_late = !late.regions.empty();
      if (is_late) late.wait_for_next();
      reducer.finish_late(&totals);
    }
    EXPECT_TRUE(is_late);
  });
}

}  // namespace reducer_by_bucket_test
}  // namespace lockstep::dist
