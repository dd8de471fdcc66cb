// The communicator's logic over the fake device: what it promises while all is well, and how each
// wait ends when it is not.
#include "dist/nccl/nccl_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "base/error.h"
#include "dist/communicator.h"
#include "tests/dist/communicator_contract.h"
#include "tests/support/fake_world.h"
#include "tests/support/thread_world.h"

namespace lockstep::dist {
namespace nccl_communicator_test {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using tests::FakeFault;
using tests::FakePlan;
using tests::FakeRun;
using tests::run_on_fake;

constexpr double kLong = 60, kGrace = 4;

using Comms = std::unique_ptr<Communicator>;

void reduce_three_times(Communicator&, Comms comm) {
  for (int i = 0; i < 3; ++i) {
    const at::Tensor values_5 = at::ones({5});
    comm->all_reduce(values_5, ReduceOp::kSum)->wait();
    EXPECT_TRUE(
        copy_to_host(*comm, values_5).equal(at::full({5}, comm->world_size()).to(at::kFloat)));
  }
}

TEST(NcclOnFakeDevice, KeepsTheContract) {
  for (const int num_ranks : {1, 3}) {
    const FakeRun run = run_on_fake(num_ranks, {}, kLong, kGrace, [](Communicator&, Comms comm) {
      tests::check_communicator_contract(*comm, false);
    });
    EXPECT_THAT(run.end_N, Each(Field(&tests::FakeEnd::text, IsEmpty())));
    EXPECT_THAT(run.breaches, IsEmpty()) << "of " << num_ranks << " ranks";
  }
}

TEST(NcclOnFakeDevice, KeepsTheContractOnSlowDevices) {
  const FakeRun run =
      run_on_fake(2, {.fault = FakeFault::kLate}, kLong, kGrace, [](Communicator&, Comms comm) {
        std::vector<at::Tensor> values;
        std::vector<std::unique_ptr<Work>> works;
        for (int64_t i = 1; i < 20; ++i) {
          values.push_back(at::full({i}, comm->rank() + i, i % 2 == 0 ? at::kHalf : at::kFloat));
          works.push_back(comm->all_reduce(values.back(), ReduceOp::kSum));
        }
        comm->settle();
        for (int64_t i = 1; i < 20; ++i)
          EXPECT_TRUE(values[i - 1].eq(static_cast<double>(2 * i + 1)).all().item<bool>());
        for (const auto& work : works) work->wait();
      });
  EXPECT_THAT(run.end_N, Each(Field(&tests::FakeEnd::text, IsEmpty())));
  EXPECT_THAT(run.breaches, IsEmpty());
}

/// Rank 1's device hangs in the second of three collectives.
FakeRun hang_in(const tests::FakeRankBody& body, double timeout_s = 0.3) {
  return run_on_fake(2, {.fault = FakeFault::kHang, .victim = 1, .at_collective = 1}, timeout_s,
                     kGrace, body);
}

void expect_hang_is_found(const FakeRun& run) {
  EXPECT_TRUE(run.end_N[0].exit_code == 79 || run.end_N[1].exit_code == 79);
  for (const tests::FakeEnd& end : run.end_N) {
    EXPECT_THAT(end.exit_code, AnyOf(79, 69)) << end.text;  // 69: the other gave up first
    EXPECT_FALSE(end.by_watchdog);
    EXPECT_LT(end.seconds, 5.3);
  }
  EXPECT_THAT(run.breaches, IsEmpty());
}

TEST(NcclOnFakeDevice, AHangEndsAHostThatWaitsForTheStream) {
  const FakeRun run = hang_in(reduce_three_times);
  expect_hang_is_found(run);
  EXPECT_THAT(run.end_N[0].text + run.end_N[1].text,
              HasSubstr("collective 2 (all_reduce of 5 Float) did not end within 0.3 s"));
}

TEST(NcclOnFakeDevice, AHangEndsABarrierAndAHostThatSettles) {
  expect_hang_is_found(hang_in([](Communicator&, Comms comm) {
    comm->barrier();
    comm->barrier();
  }));
  expect_hang_is_found(hang_in([](Communicator&, Comms comm) {
    const at::Tensor values_5 = at::ones({5});
    for (int i = 0; i < 3; ++i) (void)comm->all_reduce(values_5, ReduceOp::kSum);
    comm->settle();
    ADD_FAILURE() << "settled on " << values_5;
  }));
}

TEST(NcclOnFakeDevice, AgreementNeverBelievesWhatAnAbortedCollectiveLeft) {
  const std::vector<std::function<void(Communicator&)>> calls{
      [](Communicator& comm) { (void)all_equal(comm, 7); },
      [](Communicator& comm) { (void)sum_of(comm, 1); },
      [](Communicator& comm) { (void)gather_texts(comm, "text"); },
      [](Communicator& comm) { (void)broadcast_text(comm, "text"); },
      [](Communicator& comm) { throw_if_any(comm, std::nullopt); }};
  for (const auto& call : calls)
    for (const int64_t at : {0, 1}) {
      const FakeRun run =
          run_on_fake(2, {.fault = FakeFault::kHang, .victim = 1, .at_collective = at}, 0.3, kGrace,
                      [&](Communicator&, Comms comm) {
                        call(*comm);
                        comm->barrier();  // where the call has only one collective
                        ADD_FAILURE() << "nobody noticed";
                      });
      expect_hang_is_found(run);
    }
}

TEST(NcclOnFakeDevice, AfterAFailureEveryCallIsRefusedWithTheSameError) {
  const FakeRun run = hang_in([](Communicator&, Comms comm) {
    const at::Tensor values_4 = at::ones({4});
    int code = 0;
    try {
      for (int i = 0; i < 2; ++i) comm->all_reduce(values_4, ReduceOp::kSum)->wait_on_host();
    } catch (const Error& error) {
      code = static_cast<int>(error.code());
    }
    const auto expect_refused = [&](const std::function<void()>& part) {
      try {
        part();
        ADD_FAILURE() << "a failed communicator took a call";
      } catch (const Error& error) {
        EXPECT_EQ(static_cast<int>(error.code()), code);
      }
    };
    expect_refused([&] { (void)comm->all_reduce(values_4, ReduceOp::kSum); });
    expect_refused([&] { (void)comm->all_reduce(at::ones({0}), ReduceOp::kSum); });
    expect_refused([&] { (void)comm->reduce_scatter(at::ones({2}), values_4); });
    expect_refused([&] { (void)comm->all_gather(values_4, at::ones({2})); });
    expect_refused([&] { comm->broadcast(values_4, 0); });
    expect_refused([&] { comm->barrier(); });
    expect_refused([&] { comm->settle(); });
    expect_refused([&] { (void)comm->split(0, 0); });
    throw Error(ExitCode::kWatchdog, "test", "end");
  });
  EXPECT_THAT(run.breaches, IsEmpty()) << "NCCL was called after the abort";
}

TEST(NcclOnFakeDevice, AFailedPartOfASplitEndsToo) {
  const FakeRun run = hang_in([](Communicator&, Comms comm) {
    const auto part = comm->split(0, comm->rank());
    reduce_three_times(*part, comm->split(0, -comm->rank()));
  });
  expect_hang_is_found(run);
}

TEST(NcclOnFakeDevice, ALostPeerIsToldWithoutTheDeadline) {
  for (const FakeFault fault : {FakeFault::kKill, FakeFault::kAsyncError, FakeFault::kCudaError,
                                FakeFault::kTorchError, FakeFault::kRefusedCall}) {
    const FakeRun run = run_on_fake(3, {.fault = fault, .victim = 2, .at_collective = 1}, kLong,
                                    kGrace, reduce_three_times);
    for (int rank = 0; rank < 3; ++rank) {
      const bool is_killed = fault == FakeFault::kKill && rank == 2;
      EXPECT_EQ(run.end_N[rank].exit_code, is_killed ? -1 : 69) << run.end_N[rank].text;
      EXPECT_LT(run.end_N[rank].seconds, 10);
    }
    EXPECT_THAT(run.breaches, IsEmpty());
  }
}

TEST(NcclOnFakeDevice, AStartThatHangsEndsWithTheDeadlineOnEveryRank) {
  const FakeRun run = run_on_fake(2, {.victim = 1, .init_hangs = true}, 0.3, kGrace,
                                  [](Communicator&, Comms) { ADD_FAILURE() << "it started"; });
  EXPECT_THAT(run.end_N, Each(Field(&tests::FakeEnd::exit_code, 79)));
  EXPECT_THAT(run.breaches, IsEmpty());
}

TEST(NcclOnFakeDevice, WhereTheAbortHangsTheWatchdogEndsTheProcess) {
  const FakeRun run = run_on_fake(
      2, {.fault = FakeFault::kHang, .victim = 1, .at_collective = 1, .abort_hangs = true}, 0.3,
      0.5, reduce_three_times);
  for (const tests::FakeEnd& end : run.end_N) {
    EXPECT_EQ(end.exit_code, 79) << end.text;
    EXPECT_TRUE(end.by_watchdog);
    EXPECT_GE(end.seconds, 0.8);
    EXPECT_LT(end.seconds, 5);
  }
}

TEST(NcclOnFakeDevice, AnOrderlyEndThatHangsIsGivenUp) {
  const FakeRun run = run_on_fake(2, {.finalize_hangs = true}, kLong, 0.3, reduce_three_times);
  EXPECT_THAT(run.end_N, Each(Field(&tests::FakeEnd::text, IsEmpty())));
  for (const tests::FakeEnd& end : run.end_N) EXPECT_LT(end.seconds, 5);
  EXPECT_THAT(run.breaches, IsEmpty());
}

TEST(NcclOnFakeDevice, ARankThatThrowsDoesNotWaitForItsPeers) {
  const FakeRun run = run_on_fake(2, {}, kLong, kGrace, [](Communicator&, Comms comm) {
    if (comm->rank() == 1) {
      (void)comm->all_reduce(at::ones({3}), ReduceOp::kSum);
      throw Error(ExitCode::kBadData, "test", "this rank's own");
    }
    comm->all_reduce(at::ones({3}), ReduceOp::kSum)->wait();
    comm->barrier();
  });
  EXPECT_EQ(run.end_N[0].exit_code, 69) << run.end_N[0].text;
  EXPECT_EQ(run.end_N[1].exit_code, 65);
  for (const tests::FakeEnd& end : run.end_N) EXPECT_LT(end.seconds, 10);
}

/// The test runs in a child process, since the watchdog ends it by default.
TEST(NcclOnFakeDeviceDeathTest, TheProcessEndsWithTheCodeAndTheMessage) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto hang_for_ever = [] {
    const FakePlan plan{
        .fault = FakeFault::kHang, .victim = 1, .at_collective = 0, .abort_hangs = true};
    tests::FakeCluster cluster(2, plan);
    tests::run_ranks(2, [&](Communicator& control) {
      const auto comm = nccl::start_communicator(control, cluster.gpu(control.rank()),
                                                 {.timeout_s = 0.3, .grace_s = 0.3});
      comm->all_reduce(at::ones({5}), ReduceOp::kSum)->wait();
    });
  };
  EXPECT_EXIT(hang_for_ever(), ::testing::ExitedWithCode(79),
              "E \\[dist.nccl\\] collective 1 \\(all_reduce of 5 Float\\) did not end");
}

}  // namespace nccl_communicator_test
}  // namespace lockstep::dist
