#include "dist/nccl/watched_comm.h"

#include <latch>
#include <thread>

#include <gtest/gtest.h>

#include "tests/support/fake_gpu.h"

namespace lockstep::dist::nccl {
namespace pending_collectives_test {

using Clock = PendingCollectives::Clock;

Clock::time_point at_second(double second) {
  return Clock::time_point(
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(1000 + second)));
}

TEST(PendingCollectives, TimeOfOneBeginsWhenTheOneBeforeHasEnded) {
  tests::FakeCluster cluster(1);
  const auto gpu = cluster.gpu(0);
  const auto on_device = gpu->use_device();
  std::latch first_may_end(1), second_may_end(1);
  const auto begun = std::make_shared<Event>(gpu, gpu->callers_stream());
  PendingCollectives pending;
  EXPECT_FALSE(pending.overdue(at_second(0), 3)) << "nothing is pending";

  gpu->enqueue_kernels([&] { first_may_end.wait(); });
  const auto first = std::make_shared<Event>(gpu, gpu->own_stream());
  pending.add(begun, first, "first", at_second(0));
  gpu->enqueue_kernels([&] { second_may_end.wait(); });
  const auto second = std::make_shared<Event>(gpu, gpu->own_stream());
  pending.add(begun, second, "second", at_second(0));

  EXPECT_FALSE(pending.overdue(at_second(3), 3));
  EXPECT_EQ(pending.overdue(at_second(3.1), 3), "collective 1 (first)");
  first_may_end.count_down();
  while (!first->is_reached()) std::this_thread::yield();
  EXPECT_FALSE(pending.overdue(at_second(5), 3));
  EXPECT_FALSE(pending.overdue(at_second(8), 3));
  EXPECT_EQ(pending.overdue(at_second(8.1), 3), "collective 2 (second)");
  second_may_end.count_down();
  while (!second->is_reached()) std::this_thread::yield();
  EXPECT_FALSE(pending.overdue(at_second(100), 3));

  gpu->enqueue_kernels([] {});
  const auto third = std::make_shared<Event>(gpu, gpu->own_stream());
  while (!third->is_reached()) std::this_thread::yield();
  pending.add(begun, third, "third", at_second(100));
  EXPECT_FALSE(pending.overdue(at_second(200), 3)) << "it was done long ago";
}

TEST(PendingCollectives, TimeOfOneBeginsWhenWhatItIsHeldBehindIsDone) {
  tests::FakeCluster cluster(1);
  const auto gpu = cluster.gpu(0);
  const auto on_device = gpu->use_device();
  std::latch backward_may_end(1), collective_may_end(1);
  gpu->enqueue_kernels([&] { backward_may_end.wait(); });
  const auto begun = std::make_shared<Event>(gpu, gpu->own_stream());
  gpu->enqueue_kernels([&] { collective_may_end.wait(); });
  const auto done = std::make_shared<Event>(gpu, gpu->own_stream());
  PendingCollectives pending;
  pending.add(begun, done, "one", at_second(0));
  EXPECT_FALSE(pending.overdue(at_second(100), 3)) << "backward still computes";
  backward_may_end.count_down();
  while (!begun->is_reached()) std::this_thread::yield();
  EXPECT_FALSE(pending.overdue(at_second(103), 3));
  EXPECT_EQ(pending.overdue(at_second(103.1), 3), "collective 1 (one)");
  collective_may_end.count_down();
  while (!done->is_reached()) std::this_thread::yield();
}

}  // namespace pending_collectives_test
}  // namespace lockstep::dist::nccl
