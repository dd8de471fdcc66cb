#include "dist/cpu/shared_memory_group.h"

#include <ctime>
#include <thread>

#include <gtest/gtest.h>

#include "dist/cpu/shared_memory.h"

namespace lockstep::dist::cpu {
namespace sequence_counter_test {

using Clock = SequenceCounter::Clock;
using std::chrono::milliseconds;

double thread_cpu_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

TEST(SequenceCounter, WhatWasReachedNeedsNoWait) {
  SequenceCounter count;
  EXPECT_TRUE(count.wait_for(0, Clock::now()));
  count.raise(5);
  EXPECT_EQ(count.value(), 5U);
  EXPECT_TRUE(count.wait_for(5, Clock::now()));
  EXPECT_FALSE(count.wait_for(6, Clock::now()));
}

TEST(SequenceCounter, AWaitEndsAtItsTime) {
  SequenceCounter count;
  const Clock::time_point start = Clock::now();
  EXPECT_FALSE(count.wait_for(1, start + milliseconds(50)));
  EXPECT_GE(Clock::now() - start, milliseconds(50));
}

/// Two threads raise and await in turn; a lost wake-up would end in the time limit.
TEST(SequenceCounter, NoWakeUpIsLost) {
  SequenceCounter ping, pong;
  const auto until = Clock::now() + std::chrono::seconds(60);
  std::thread other([&] {
    for (uint64_t i = 1; i <= 3000; ++i) {
      ASSERT_TRUE(ping.wait_for(i, until)) << i;
      if (i % 100 == 0) std::this_thread::sleep_for(milliseconds(1));  // long enough for a sleep
      pong.raise(i);
    }
  });
  for (uint64_t i = 1; i <= 3000; ++i) {
    ping.raise(i);
    ASSERT_TRUE(pong.wait_for(i, until)) << i;
  }
  other.join();
}

/// A long wait sleeps: it takes hardly any time from who computes on the same core.
TEST(SequenceCounter, AWaiterLeavesTheCoreToOthers) {
  SequenceCounter count;
  std::thread raiser([&] {
    std::this_thread::sleep_for(milliseconds(400));
    count.raise(1);
  });
  const double before_ms = thread_cpu_ms();
  EXPECT_TRUE(count.wait_for(1, Clock::now() + std::chrono::seconds(60)));
  EXPECT_LT(thread_cpu_ms() - before_ms, 20) << "of 400 ms";
  raiser.join();
}

TEST(SharedWindow, SlotsShrinkUntilTheyFit) {
  const SegmentLayout layout{.num_members = 2, .num_slots = 4};
  constexpr int64_t kLarge = 256 << 10, kTwoRooms = 2LL * (2 * 4096 + 8 * kLarge);
  EXPECT_EQ(fitting_slot_bytes(layout, kLarge, 1LL << 40), kLarge);
  EXPECT_EQ(fitting_slot_bytes(layout, kLarge, kTwoRooms), kLarge);
  EXPECT_EQ(fitting_slot_bytes(layout, kLarge, kTwoRooms - 1), kLarge / 2);
  constexpr int64_t kThreeHosts = 3 * (56 << 10);  // whose half and quarter are no whole pages
  for (int64_t free = 2 * kTwoRooms; free > 0; free -= 50'000)
    EXPECT_EQ(fitting_slot_bytes(layout, kThreeHosts, free) % 4096, 0) << free;
  EXPECT_EQ(fitting_slot_bytes(layout, kLarge, 100'000), 0);
  EXPECT_EQ(fitting_slot_bytes(layout, kLarge, -1), 0);
}

TEST(SharedWindow, AFolderThatIsNotThereHasNoSpace) {
  EXPECT_EQ(free_bytes("no/such/folder"), 0);
  EXPECT_GT(free_bytes("."), 0);
}

}  // namespace sequence_counter_test
}  // namespace lockstep::dist::cpu
