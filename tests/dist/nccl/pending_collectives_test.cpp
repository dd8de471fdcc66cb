#include "dist/nccl/pending_collectives.h"

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
  PendingCollectives pending;
  EXPECT_FALSE(pending.overdue(at_second(0), 3)) << "nothing is pending";

  gpu->enqueue_kernels([&] { first_may_end.wait(); });
  const auto first = std::make_shared<Event>(gpu, gpu->own_stream());
  pending.add(first, "first", at_second(0));
  gpu->enqueue_kernels([&] { second_may_end.wait(); });
  const auto second = std::make_shared<Event>(gpu, gpu->own_stream());
  pending.add(second, "second", at_second(0));

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
  pending.add(third, "third", at_second(100));
  EXPECT_FALSE(pending.overdue(at_second(200), 3)) << "it was done long ago";
}

}  // namespace pending_collectives_test
}  // namespace lockstep::dist::nccl
