#include <chrono>
#include <thread>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/log.h"
#include "base/simd/bit_mask.h"
#include "dist/nccl/gpu_backend.h"
#include "dist/reducer/gradient_reducer.h"
#include "tests/dist/reducer/flat_model.h"
#include "tests/dist/reducer/reducer_contract.h"
#include "tests/dist/spy_communicator.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/patience.h"
#include "tests/support/thread_world.h"

namespace lockstep::dist {
namespace reducer_overlap_test {

using ::testing::HasSubstr;
using tests::FlatModel;
using tests::SpyCommunicator;

constexpr int64_t kWidth = 12;
constexpr int64_t kShareBytes = 8 * (6 + kNumVotes);

SyncOptions overlapping(int64_t bucket_bytes) {
  return {.bucket_bytes = bucket_bytes, .overlap = "true", .sparse_allreduce = "never"};
}

at::Tensor some_inputs() { return at::cos(at::arange(2 * kWidth, at::kFloat)).view({2, kWidth}); }

/// Forward with a guest: `when_reached` runs in the midst of backward, after the last two layers'
/// gradients and before the first two layers'.
at::Tensor loss_with_guest(const FlatModel& model, const std::function<void()>& when_reached) {
  at::Tensor x = some_inputs();
  for (int64_t layer = 0; layer < 4; ++layer) {
    x = at::tanh(at::linear(x, model.weight(layer), model.bias(layer)));
    if (layer == 1)
      x.register_hook([when_reached](const at::Tensor& grad) {
        when_reached();
        return grad;
      });
  }
  return x.square().sum();
}

class ReducerWays : public ::testing::TestWithParam<int> {};

TEST_P(ReducerWays, AllGiveTheSameBits) { tests::run_ranks(GetParam(), tests::check_reducer_ways); }

TEST_P(ReducerWays, OverlapSendsWhileBackwardGoesOn) {
  tests::run_ranks(GetParam(), [](Communicator& comm) {
    SpyCommunicator spy(comm);
    FlatModel model;
    GradientReducer reducer(spy, model.buffers, model.params, overlapping(kWidth * kWidth * 4));
    reducer.prepare_for_backward();
    // Backward stands still here: only another thread can have sent the last layers' weights.
    loss_with_guest(model, [&] {
      EXPECT_TRUE(tests::comes_true([&] { return spy.num_reductions == 2; })) << spy.num_reductions;
    }).backward();
    const GlobalStepStats totals = reducer.finish({.loss_sum = 1, .num_samples = 2});
    EXPECT_EQ(spy.num_reductions, 4 + 1 + 1);  // weights by layer, biases, statistics
    EXPECT_GT(totals.overlapped_s, 0);
    EXPECT_GE(totals.reduce_s, totals.overlapped_s);
    EXPECT_EQ(totals.bytes_reduced, 4 * (kWidth * kWidth + kWidth) * 4 + kShareBytes);
    EXPECT_EQ(totals.bytes_sent,
              2 * (comm.world_size() - 1) * totals.bytes_reduced / comm.world_size());
  });
}

TEST_P(ReducerWays, WithoutOverlapNothingIsSentBeforeFinish) {
  tests::run_ranks(GetParam(), [](Communicator& comm) {
    SpyCommunicator spy(comm);
    FlatModel model;
    GradientReducer reducer(spy, model.buffers, model.params,
                            {.bucket_bytes = 100, .overlap = "false"});
    reducer.prepare_for_backward();
    loss_with_guest(model, [] {}).backward();
    EXPECT_EQ(spy.num_reductions, 0);
    const GlobalStepStats totals = reducer.finish({.loss_sum = 1, .num_samples = 2});
    EXPECT_EQ(totals.overlapped_s, 0);
    EXPECT_GT(totals.reduce_s, 0);
  });
}

TEST_P(ReducerWays, ABucketWaitsForThoseBeforeIt) {
  tests::run_ranks(GetParam(), [](Communicator& comm) {
    SpyCommunicator spy(comm);
    FlatModel model;
    GradientReducer reducer(spy, model.buffers, model.params, overlapping(kWidth * kWidth * 4));
    reducer.prepare_for_backward();
    // The last layer's gradients never come: what is complete behind them stays until finish(),
    // which then sends all itself. (With a divisor it would leave all to the communication thread
    // if that had anything to begin with.)
    const std::thread::id own_thread = std::this_thread::get_id();
    spy.before_reduction = [&](int number) {
      EXPECT_EQ(std::this_thread::get_id(), own_thread) << "reduction " << number;
    };
    at::Tensor x = some_inputs();
    for (int64_t layer = 0; layer < 3; ++layer)
      x = at::tanh(at::linear(x, model.weight(layer), model.bias(layer)));
    x.square().sum().backward();
    EXPECT_EQ(spy.num_reductions, 0);
    EXPECT_EQ(reducer.finish({.loss_sum = 1, .num_samples = 2, .gradient_divisor = 2}).overlapped_s,
              0);
    EXPECT_TRUE(model.weight(3).grad().equal(at::zeros({kWidth, kWidth})));
    EXPECT_FALSE(model.weight(2).grad().equal(at::zeros({kWidth, kWidth})));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, ReducerWays, ::testing::Values(1, 2, 3, 4));

TEST(ReducerOverlap, NamesParametersWithoutGradientOnce) {
  tests::run_ranks(2, [](Communicator& comm) {
    FlatModel model(3, kWidth, true);
    GradientReducer reducer(comm, model.buffers, model.params, overlapping(1000));
    std::string said;
    for (int step = 0; step < 3; ++step) {
      comm.barrier();
      if (comm.rank() == 0) ::testing::internal::CaptureStderr();
      comm.barrier();
      reducer.prepare_for_backward();
      model.forward(some_inputs()).sum().backward();
      reducer.finish({.loss_sum = 1, .num_samples = 2});
      comm.barrier();
      if (comm.rank() == 0) said = ::testing::internal::GetCapturedStderr();
      if (comm.rank() == 0 && step == 0) {
        EXPECT_THAT(said, HasSubstr("layers.0.unused, layers.1.unused, layers.2.unused"));
        EXPECT_THAT(said, ::testing::Not(HasSubstr("weight")));
      } else {
        EXPECT_EQ(said, "") << step;
      }
      said.clear();
    }
  });
}

TEST(ReducerOverlap, ASecondBackwardIsABug) {
  tests::run_ranks(1, [](Communicator& comm) {
    FlatModel model;
    GradientReducer reducer(comm, model.buffers, model.params, overlapping(1000));
    reducer.prepare_for_backward();
    model.forward(some_inputs()).sum().backward();
    EXPECT_THROW(model.forward(some_inputs()).sum().backward(), Error);
  });
}

TEST(ReducerOverlap, GradientsOutsideAStepAreNobodysBusiness) {
  tests::run_ranks(1, [](Communicator& comm) {
    FlatModel model;
    at::Tensor loss_of_then;
    {
      GradientReducer reducer(comm, model.buffers, model.params, overlapping(1000));
      reducer.prepare_for_backward();
      reducer.finish({.loss_sum = 1, .num_samples = 1});
      model.forward(some_inputs()).sum().backward();
      model.forward(some_inputs()).sum().backward();
      loss_of_then = model.forward(some_inputs()).sum();
      reducer.prepare_for_backward();
    }
    loss_of_then.backward();  // the reducer is gone, and its hooks
  });
}

TEST(ReducerOverlap, FrozenBuffersAreLeftOutAndCount) {
  tests::run_ranks(2, [](Communicator& comm) {
    FlatModel model;
    GradientReducer reducer(comm, model.buffers, model.params, overlapping(1000));
    for (int step = 0; step < 2; ++step) {
      model.zero_grads();
      reducer.prepare_for_backward();
      model.forward(some_inputs()).sum().backward();
      const int64_t num_bytes =
          reducer.finish({.loss_sum = 1, .num_samples = 2}).bytes_reduced - kShareBytes;
      EXPECT_EQ(num_bytes, 4 * (kWidth * kWidth + (step == 0 ? kWidth : 0)) * 4);
      for (Param& param : model.params)
        if (!param.decayed) {
          param.tensor.mutable_grad() = at::Tensor();
          param.tensor.set_requires_grad(false);
        }
      model.buffers[1].frozen = true;
      model.buffers[1].grads_E = at::Tensor();
    }
  });
}

TEST(ReducerOverlap, AFaultOnTheCommunicationThreadComesOutOfFinish) {
  tests::run_ranks(2, [](Communicator& comm) {
    SpyCommunicator spy(comm);
    spy.before_reduction = [](int number) {
      if (number == 1) throw Error(ExitCode::kUnavailable, "test", "the wire is cut");
    };
    FlatModel model;
    GradientReducer reducer(spy, model.buffers, model.params, overlapping(kWidth * kWidth * 4));
    reducer.prepare_for_backward();
    loss_with_guest(model, [&] {
      EXPECT_TRUE(tests::comes_true([&] { return spy.num_reductions == 1; }));
    }).backward();
    try {
      reducer.finish({.loss_sum = 1, .num_samples = 2});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kUnavailable);
      EXPECT_THAT(error.what(), HasSubstr("the wire is cut"));
    }
    EXPECT_EQ(spy.num_reductions, 1) << "nothing is sent after a fault";
  });
}

/// The peers of a rank that fails in backward get the buckets which it sent before, and then the
/// communicator's verdict; no rank hangs.
TEST(ReducerOverlap, ARankWhoseBackwardThrowsEndsAndItsPeersAreTold) {
  for (const int num_ranks : {2, 4}) {
    try {
      tests::run_ranks(num_ranks, [](Communicator& comm) {
        FlatModel model;
        GradientReducer reducer(comm, model.buffers, model.params, overlapping(100));
        for (int step = 0; step < 3; ++step) {
          model.zero_grads();
          reducer.prepare_for_backward();
          loss_with_guest(model, [&] {
            if (comm.rank() == 1 && step == 1) throw std::runtime_error("out of luck");
          }).backward();
          reducer.finish({.loss_sum = 1, .num_samples = 2});
        }
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), HasSubstr("out of luck"));
    }
  }
}

/// Options that a GPU does not support are refused, not ignored.
TEST(ReducerOverlap, WhatAGpuCannotDoIsRefused) {
  tests::run_ranks(2, [](Communicator& comm) {
    SpyCommunicator spy(comm);
    spy.pretended_device = at::Device(at::kCUDA, 0);
    FlatModel model;
    const auto refusal = [&](const SyncOptions& options) -> std::string {
      try {
        const GradientReducer reducer(spy, model.buffers, model.params, options);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kConfig);
        return error.what();
      }
      return "";
    };
    EXPECT_EQ(refusal({.overlap = "true"}), "");
    EXPECT_THAT(refusal({.overlap = "true", .shard_optimizer = true}),
                HasSubstr("sync.overlap: true on GPUs needs unsharded gradients"));
    EXPECT_THAT(refusal({.overlap = "true", .comm_dtype = "bf16"}),
                HasSubstr("sync.overlap: true on GPUs needs unsharded gradients"));
    EXPECT_THAT(refusal({.sparse_allreduce = "always"}),
                HasSubstr("sync.sparse_allreduce: always on GPUs needs"));
    tests::FakeCluster cluster(1);
    spy.packing = std::make_shared<nccl::GpuPacking>(cluster.gpu(0));
    EXPECT_EQ(refusal({.sparse_allreduce = "always"}), "");
    EXPECT_THAT(refusal({.sparse_allreduce = "always", .shard_optimizer = true}),
                HasSubstr("sync.sparse_allreduce: always on GPUs needs"));
    EXPECT_THAT(refusal({.overlap = "true", .sparse_allreduce = "always"}),
                HasSubstr("sync.sparse_allreduce: always on GPUs needs"));
    EXPECT_EQ(refusal({}), "") << "auto does what can be done";
  });
}

/// Returns by step whether buckets were sent during backward. The first sender of a step is delayed
/// by `when_beside_s` if it is not backward's thread, else by `when_after_s`.
std::vector<bool> ways_taken(Communicator& comm, double when_beside_s, double when_after_s) {
  SpyCommunicator spy(comm);
  FlatModel model(4, 300);  // more than a million bytes
  GradientReducer reducer(spy, model.buffers, model.params, {.bucket_bytes = 300 * 300 * 4});
  const std::thread::id own_thread = std::this_thread::get_id();
  std::atomic<bool> sent_beside = false, is_first = false;
  spy.before_reduction = [&](int) {
    const bool is_beside = std::this_thread::get_id() != own_thread;
    if (is_beside) sent_beside = true;
    if (is_first.exchange(false))
      std::this_thread::sleep_for(
          std::chrono::duration<double>(is_beside ? when_beside_s : when_after_s));
  };
  std::vector<bool> beside;
  const at::Tensor inputs = at::ones({2, 300});
  for (int step = 0; step < 20; ++step) {
    model.zero_grads();
    sent_beside = false;
    is_first = true;
    reducer.prepare_for_backward();
    model.forward(inputs).sum().backward();
    // A divisor: with overlap the communication thread sends all that backward left over.
    const GlobalStepStats totals =
        reducer.finish({.loss_sum = 1, .num_samples = 2, .gradient_divisor = 2});
    EXPECT_EQ(totals.bytes_reduced, 4 * (300 * 300 + 300) * 4 + kShareBytes) << step;
    beside.push_back(sent_beside);
  }
  // 20 steps of 4 weights, biases and numbers, and one message for the verdict
  EXPECT_EQ(spy.num_reductions, 20 * 6 + 1);
  return beside;
}

TEST(ReducerOverlap, AutoTriesBothWaysInTurnAndKeepsTheFasterOne) {
  for (const bool overlap_is_slower : {false, true})
    tests::run_ranks(2, [=](Communicator& comm) {
      const double slow_s = 0.05;
      const std::vector<bool> beside =
          ways_taken(comm, overlap_is_slower ? slow_s : 0, overlap_is_slower ? 0 : slow_s);
      for (int step = 0; step < 20; ++step)
        EXPECT_EQ(beside[step], step < 12 ? step % 2 == 1 : !overlap_is_slower) << step;
    });
}

}  // namespace reducer_overlap_test
}  // namespace lockstep::dist
