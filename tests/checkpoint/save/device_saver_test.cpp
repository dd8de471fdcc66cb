// Saves of state on a device (tests/support/fake_gpu.h), whose streams come late by chance: what is
// saved is the state at begin(), and the thread that trains waits for no stream.
#include <chrono>
#include <future>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "checkpoint/restore.h"
#include "checkpoint/save/save_plan.h"
#include "checkpoint/save/saver.h"
#include "dist/nccl/nccl_communicator.h"
#include "tests/checkpoint/save_fixture.h"
#include "tests/checkpoint/world_state.h"
#include "tests/support/fake_gpu.h"

namespace lockstep::checkpoint {
namespace device_saver_test {

using lockstep::tests::FakeCluster;
using lockstep::tests::FakeFault;
using lockstep::tests::FakePlan;
using lockstep::tests::run_ranks;
using ::testing::IsEmpty;
using tests::TemporaryFolder;
using tests::WorldState;

constexpr double kTimeoutS = 60;

int num_schedules() { return std::getenv("LOCKSTEP_SOAK") != nullptr ? 500 : 10; }

/// A rank that trains on the fake device and saves through its own saver.
struct Rank {
  Rank(FakeCluster& cluster_, const SaverOptions& options, dist::Communicator& control,
       double timeout_s = kTimeoutS)
      : cluster(cluster_),
        rank(control.rank()),
        gradients(dist::nccl::start_communicator(control, cluster.gpu(rank),
                                                 {.timeout_s = timeout_s, .grace_s = 4})),
        saver(options, control) {
    saver.set_stager(gradients->make_stager());
  }
  void update(WorldState& state) {
    cluster.enqueue(rank, [&state] { state.change_what_is_steady(); });
  }
  void drain() {
    std::promise<void> done;
    cluster.enqueue(rank, [&] { done.set_value(); });
    done.get_future().wait();
  }

  FakeCluster& cluster;
  const int rank;
  const std::unique_ptr<dist::Communicator> gradients;
  Saver saver;
};

SaverOptions options_of(const TemporaryFolder& folder, bool sparse = false) {
  return {
      .prefix = folder.prefix(), .sparse = sparse, .compare_replicas = true, .min_cut_bytes = 0};
}

void expect_restored(const std::string& prefix, int64_t seed, int world_size, bool sparse) {
  run_ranks(world_size, [&](dist::Communicator& control) {
    WorldState restored(seed + 50, control.rank(), world_size);
    restore_on_all(prefix, restored.list(sparse), control);
    EXPECT_TRUE(restored == WorldState(seed, control.rank(), world_size))
        << prefix << ", rank " << control.rank();
  });
}

TEST(DeviceSaver, HoldsTheStateAtBeginWhateverIsEnqueuedAfterwards) {
  for (int seed = 0; seed < num_schedules(); ++seed) {
    const int world_size = 1 + seed % 3;
    const bool sparse = seed % 2 == 1;
    const TemporaryFolder folder;
    FakeCluster cluster(world_size, {.has_async_callers = true,
                                     .most_delay_us = seed % 4 == 0 ? 20'000 : 1'000,
                                     .seed = static_cast<uint64_t>(seed)});
    run_ranks(world_size, [&](dist::Communicator& control) {
      Rank own(cluster, options_of(folder, sparse), control);
      WorldState state(2, own.rank, world_size);
      if (seed % 3 == 0) own.saver.prepare(state.list(sparse));
      for (const int64_t step : {3, 4}) {  // pinned memory is used again
        cluster.enqueue(own.rank, [&] {
          const WorldState now(step, own.rank, world_size);
          state.weight.copy_(now.weight);
          state.moment.copy_(now.moment);
          state.pruned_weight.copy_(now.pruned_weight);
          state.pruned_moment.copy_(now.pruned_moment);
        });
        const WorldState now(step, own.rank, world_size);  // of the host: no stream is asked
        state.statistic = now.statistic;
        state.mask_bits = now.mask_bits;
        state.step = now.step;
        state.text = now.text;
        own.saver.begin(state.list(sparse), step);
        state.change_the_rest();
        own.saver.wait_until_staged();
        own.update(state);
        const SaveResult result = own.saver.wait();
        EXPECT_TRUE(result.ok) << result.error;
        own.drain();
      }
    });
    EXPECT_THAT(cluster.breaches(), IsEmpty()) << "schedule " << seed;
    for (const int64_t step : {3, 4})
      expect_restored(folder.prefix() + "-" + std::to_string(step), step, world_size, sparse);
    if (::testing::Test::HasFailure()) return;
  }
}

/// The device begins only when the host has gone on to the next update.
TEST(DeviceSaver, TheThreadThatTrainsDoesNotWaitForTheDevice) {
  const TemporaryFolder folder;
  FakeCluster cluster(2, {.has_async_callers = true});
  run_ranks(2, [&](dist::Communicator& control) {
    Rank own(cluster, options_of(folder), control);
    WorldState state(3, own.rank, 2);
    std::promise<void> gate;
    const std::shared_future<void> open = gate.get_future().share();
    bool has_waited = false;
    cluster.enqueue(own.rank, [&has_waited, open] {
      has_waited = open.wait_for(std::chrono::seconds(20)) == std::future_status::timeout;
    });
    own.saver.begin(state.list(), 3);
    own.saver.wait_until_staged();
    own.update(state);
    EXPECT_FALSE(own.saver.is_done());
    gate.set_value();
    EXPECT_TRUE(own.saver.wait().ok);
    own.drain();
    EXPECT_FALSE(has_waited);
  });
  expect_restored(folder.prefix() + "-3", 3, 2, false);
}

/// The state is behind a collective that never ends.
TEST(DeviceSaver, CommitsNothingFromADeviceThatWasGivenUp) {
  const TemporaryFolder folder;
  FakeCluster cluster(
      2, {.fault = FakeFault::kHang, .victim = 1, .at_collective = 0, .has_async_callers = true});
  run_ranks(2, [&](dist::Communicator& control) {
    Rank own(cluster, options_of(folder), control, /*timeout_s=*/0.3);
    std::promise<int> told;
    own.saver.set_on_lost(
        [&](const Error& fault) { told.set_value(static_cast<int>(fault.code())); });
    WorldState state(3, own.rank, 2);
    own.gradients->all_reduce(state.weight, dist::ReduceOp::kSum)->wait();  // of the stream
    own.saver.begin(state.list(), 3);
    EXPECT_THROW((void)own.saver.wait(), Error);
    auto code = told.get_future();
    ASSERT_EQ(code.wait_for(std::chrono::seconds(10)), std::future_status::ready);
    EXPECT_THAT(code.get(), ::testing::AnyOf(79, 69));
  });
  EXPECT_THAT(files::list(folder.path()), IsEmpty());
}

TEST(DeviceSaver, WithoutPinnedMemorySavesAreAsBefore) {
  const TemporaryFolder folder;
  FakeCluster cluster(2, {.refuses_pinned_memory = true});
  run_ranks(2, [&](dist::Communicator& control) {
    Rank own(cluster, options_of(folder), control);
    WorldState state(3, own.rank, 2);
    own.saver.prepare(state.list());
    own.saver.begin(state.list(), 3);
    state.change_the_rest();
    own.saver.wait_until_staged();
    state.change_what_is_steady();
    EXPECT_TRUE(own.saver.wait().ok);
  });
  expect_restored(folder.prefix() + "-3", 3, 2, false);
}

/// A device on which nothing of the state lies.
class ElsewhereStager final : public DeviceStager {
 public:
  at::Device device() const override { return at::kMeta; }
  void prepare(int64_t) override {}
  std::unique_ptr<StagedCopy> begin(const std::vector<StagedPart>& parts) override {
    EXPECT_THAT(parts, IsEmpty());
    return nullptr;
  }
};

/// Host tensors such as masks change at once, while the saver still reads.
TEST(DeviceSaver, WhatLiesOnTheHostIsCopiedAtBegin) {
  WorldState state(3, 0, 1);
  Snapshot snapshot(state.list(/*sparse=*/true));
  ElsewhereStager stager;
  (void)snapshot.copy_all(stager);
  EXPECT_EQ(snapshot.bytes_on(at::kMeta), 0);
  state.change_the_rest();
  state.change_what_is_steady();
  state.mask_bits.zero_();
  WorldState then(3, 0, 1);
  const StateList copied = snapshot.state(), expected = then.list(/*sparse=*/true);
  for (size_t i = 0; i < copied.size(); ++i) {
    const at::Tensor& tensor = copied[i].tensor;
    const at::Tensor& bits = copied[i].kept_bits;
    EXPECT_TRUE(!tensor.defined() || at::equal(tensor, expected[i].tensor)) << copied[i].key;
    EXPECT_TRUE(!bits.defined() || at::equal(bits, then.mask_bits)) << copied[i].key;
    EXPECT_EQ(copied[i].text == nullptr ? "seed 3" : *copied[i].text, "seed 3");
  }
}

}  // namespace device_saver_test
}  // namespace lockstep::checkpoint
