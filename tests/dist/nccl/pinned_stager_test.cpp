// Copies of a state for saves, during steps with random delays: each copy contains the state at
// begin(), and no update starts before it was read. LOCKSTEP_SOAK=1: 10,000 schedules.
#include "dist/nccl/gpu_backend.h"

#include <cstdlib>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "dist/nccl/nccl_communicator.h"
#include "tests/support/fake_world.h"
#include "tests/support/thread_world.h"

namespace lockstep::dist::nccl {
namespace pinned_stager_test {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::Field;
using ::testing::IsEmpty;
using tests::FakeFault;

constexpr int kSaves = 3, kFew = 200, kMany = 10'000;
const WatchLimits kLimits{.timeout_s = 60, .grace_s = 4};

int num_schedules() { return std::getenv("LOCKSTEP_SOAK") != nullptr ? kMany : kFew; }

/// A run of one rank that saves now and then: each update writes its number into the state.
class Schedule {
 public:
  Schedule(tests::FakeCluster& cluster, Communicator& comm, uint64_t seed)
      : cluster_(cluster),
        comm_(comm),
        stager_(comm.make_stager()),
        random_(static_cast<uint32_t>(seed + 1)) {
    const size_t num_tensors = 1 + random_() % 4;
    for (size_t i = 0; i < num_tensors; ++i)
      state_.push_back(at::zeros({static_cast<int64_t>(1 + random_() % 200)}));
    if (random_() % 2 == 0) stager_->prepare(64);  // may be too small
  }
  ~Schedule() {
    std::promise<void> done;
    cluster_.enqueue(comm_.rank(), [&] { done.set_value(); });
    done.get_future().wait();
  }

  void run() {
    for (int save = 0; save < kSaves; ++save) {
      for (size_t i = random_() % 3; i > 0; --i) update();
      update();
      begin();
      if (random_() % 2 == 0) forward();
      if (random_() % 3 == 0) lay_out_anew();
      std::future<void> written = std::async(std::launch::async, [this] { write(); });
      copy_->hold_caller();
      update();
      written.get();
      if (random_() % 2 == 0) copy_.reset();
    }
  }

  const std::vector<std::string>& faults() const { return faults_; }

 private:
  void update() {
    ++number_;
    for (const at::Tensor& tensor : state_)
      cluster_.enqueue(comm_.rank(), [tensor, number = number_] { tensor.fill_(number); });
  }

  void begin() {
    expected_ = number_;
    std::vector<StagedPart> parts;
    for (const at::Tensor& tensor : state_) parts.push_back({tensor});
    if (random_() % 4 == 0 && state_[0].numel() > 4)
      parts[0].held = std::vector<ElementRange>{{0, 2}, {3, state_[0].numel()}};
    is_held_ = parts[0].held.has_value();
    // Memory without owner, like that of clones.
    parts.push_back({at::full({7}, static_cast<double>(expected_))});
    copy_ = stager_->begin(parts);
  }

  void forward() {
    cluster_.enqueue(comm_.rank(), [state = state_] { (void)state[0].sum().item<float>(); });
  }

  /// Replaces the tensors of the state, as when buffers are laid out again. The stream is held
  /// first.
  void lay_out_anew() {
    copy_->hold_caller();
    for (at::Tensor& tensor : state_) {
      const at::Tensor moved = at::empty_like(tensor);
      cluster_.enqueue(comm_.rank(), [moved, number = number_] { moved.fill_(number); });
      tensor = moved;
    }
  }

  /// The saver's thread.
  void write() {
    copy_->wait_on_host();
    for (size_t i = 0; i < copy_->copies().size(); ++i) {
      const at::Tensor& copy = copy_->copies()[i];
      const at::Tensor read =
          i == 0 && is_held_ ? at::cat({copy.narrow(0, 0, 2), copy.narrow(0, 3, copy.numel() - 3)})
                             : copy;
      if (!read.eq(expected_).all().item<bool>())
        faults_.push_back(
            fmt::format("tensor {}: {} instead of {}", i, read[0].item<float>(), expected_));
    }
  }

  tests::FakeCluster& cluster_;
  Communicator& comm_;
  std::shared_ptr<DeviceStager> stager_;
  std::minstd_rand random_;
  std::vector<at::Tensor> state_;
  std::unique_ptr<StagedCopy> copy_;
  int number_ = 0, expected_ = 0;
  bool is_held_ = false;
  std::vector<std::string> faults_;
};

TEST(StagingSchedules, EachCopyIsTheStateAtItsBegin) {
  for (int seed = 0; seed < num_schedules(); ++seed) {
    tests::FakeCluster cluster(1, {.has_async_callers = true,
                                   .most_delay_us = seed % 5 == 0 ? 2000 : 200,
                                   .seed = static_cast<uint64_t>(seed)});
    tests::run_ranks(1, [&](Communicator& control) {
      const auto comm = start_communicator(control, cluster.gpu(0), kLimits);
      Schedule schedule(cluster, *comm, static_cast<uint64_t>(seed));
      schedule.run();
      EXPECT_THAT(schedule.faults(), IsEmpty()) << "schedule " << seed;
    });
    EXPECT_THAT(cluster.breaches(), IsEmpty()) << "schedule " << seed;
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(PinnedStager, TheHostNeitherWaitsForTheStateNorForItsCopy) {
  tests::FakeCluster cluster(1, {.has_async_callers = true});
  tests::run_ranks(1, [&](Communicator& control) {
    const auto comm = start_communicator(control, cluster.gpu(0), kLimits);
    const auto stager = comm->make_stager();
    const at::Tensor state_3 = at::ones({3});
    std::promise<void> gate;
    cluster.enqueue(0, [&, opened = gate.get_future().share()] { opened.wait(); });
    cluster.enqueue(0, [&] { state_3.fill_(2); });
    const auto copy = stager->begin({{state_3}});
    copy->hold_caller();
    cluster.enqueue(0, [&] { state_3.fill_(3); });
    gate.set_value();  // only now does the device begin
    copy->wait_on_host();
    EXPECT_TRUE(copy->copies()[0].eq(2).all().item<bool>()) << copy->copies()[0];
  });
  EXPECT_THAT(cluster.breaches(), IsEmpty());
}

/// The state comes from a collective that never ended.
TEST(PinnedStager, NeverGivesWhatAnAbortedCollectiveLeft) {
  const tests::FakeRun run = tests::run_on_fake(
      2, {.fault = FakeFault::kHang, .victim = 1, .at_collective = 0, .has_async_callers = true},
      0.3, 4, [](Communicator&, std::unique_ptr<Communicator> comm) {
        const auto stager = comm->make_stager();
        const at::Tensor state_5 = at::ones({5});
        comm->all_reduce(state_5, ReduceOp::kSum)->wait();  // of the caller's stream
        const auto copy = stager->begin({{state_5}});
        EXPECT_THROW(copy->wait_on_host(), Error);
        EXPECT_THROW((void)stager->begin({{state_5}}), Error);
        comm->settle();
      });
  for (const tests::FakeEnd& end : run.end_N) EXPECT_THAT(end.exit_code, AnyOf(79, 69)) << end.text;
  EXPECT_THAT(run.breaches, IsEmpty());
}

TEST(PinnedStager, OutlivesItsCommunicatorWhileItCopies) {
  tests::FakeCluster cluster(1, {.has_async_callers = true, .most_delay_us = 2000, .seed = 3});
  tests::run_ranks(1, [&](Communicator& control) {
    for (int i = 0; i < 20; ++i) {
      std::shared_ptr<DeviceStager> stager;
      const at::Tensor state_9 = at::full({9}, i);
      auto comm = start_communicator(control, cluster.gpu(0), kLimits);
      stager = comm->make_stager();
      comm.reset();
      (void)stager->begin({{state_9}});  // unused
      stager.reset();
    }
  });
  EXPECT_THAT(cluster.breaches(), IsEmpty());
}

TEST(PinnedStager, SaysWhyThereIsNoMemory) {
  const tests::FakeRun run =
      tests::run_on_fake(1, {.refuses_pinned_memory = true}, 60, 4,
                         [](Communicator&, std::unique_ptr<Communicator> comm) {
                           const auto stager = comm->make_stager();
                           EXPECT_THROW(stager->prepare(1), Error);
                           EXPECT_THROW((void)stager->begin({{at::ones({3})}}), Error);
                         });
  EXPECT_THAT(run.end_N, Each(Field(&tests::FakeEnd::text, IsEmpty())));
}

}  // namespace pinned_stager_test
}  // namespace lockstep::dist::nccl
