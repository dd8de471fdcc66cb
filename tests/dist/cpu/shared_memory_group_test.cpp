#include "dist/cpu/shared_memory_group.h"

#include <atomic>
#include <memory>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace lockstep::dist::cpu {
namespace shared_memory_group_test {

using ::testing::HasSubstr;

constexpr SegmentLayout kLayout{
    .num_members = 3, .num_slots = 2, .num_extra = 1, .slot_bytes = 4096};

/// A group of three, whose members are objects of one thread.
class Groups {
 public:
  Groups() {
    std::vector<std::byte*> segments_M;
    std::vector<Peer> peers_M(kLayout.num_members);
    for (int m = 0; m < kLayout.num_members; ++m) {
      const auto num_bytes = static_cast<size_t>(kLayout.segment_bytes(m));
      memory_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(4096, num_bytes)));
      segments_M.push_back(memory_.back().get());
      peers_M[m].world_rank = 10 + m;
    }
    for (int m = 0; m < kLayout.num_members; ++m) {
      groups_.emplace_back(segments_M, m, kLayout, peers_M);
      groups_.back().set_limits(0.05, 60);
    }
  }

  SharedMemoryGroup& operator[](int member) { return groups_[member]; }
  void begin(const Call& call) {
    for (SharedMemoryGroup& group : groups_) group.begin(call);
  }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::vector<std::unique_ptr<std::byte, Free>> memory_;
  std::vector<SharedMemoryGroup> groups_;
};

const Call kReduce{.kind = CallKind::kAllReduce, .dtype = 6, .num_items = 7};

/// Error message of the wait.
std::string failure(SharedMemoryGroup& group, uint64_t count, ExitCode code) {
  try {
    group.wait_for_all(count);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  ADD_FAILURE() << "nobody was missed";
  return {};
}

TEST(SharedMemoryGroup, AStepIsOverWhenAllHaveMadeIt) {
  Groups groups;
  groups.begin(kReduce);
  for (int m = 0; m < 3; ++m) EXPECT_EQ(groups[m].advance(), 1U);
  for (int m = 0; m < 3; ++m) groups[m].wait_for_all(1);
}

TEST(SharedMemoryGroup, NamesWhoIsFurthestBehind) {
  Groups groups;
  groups.begin(kReduce);
  for (int step = 0; step < 3; ++step) static_cast<void>(groups[0].advance());
  for (int step = 0; step < 2; ++step) static_cast<void>(groups[1].advance());
  static_cast<void>(groups[2].advance());
  const std::string text = failure(groups[0], 3, ExitCode::kWatchdog);
  EXPECT_THAT(text, HasSubstr("all_reduce of 7 Float (sum), call 1: waited 0."));
  EXPECT_THAT(text, HasSubstr("rank 12 "));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("rank 11 ")));
}

TEST(SharedMemoryGroup, UnequalCallsAreNoticedByAll) {
  Groups groups;
  groups.begin(kReduce);
  for (int m = 0; m < 3; ++m) static_cast<void>(groups[m].advance());
  for (int m = 0; m < 3; ++m) groups[m].wait_for_all(1);
  for (int m = 0; m < 2; ++m) groups[m].begin(kReduce);
  Call other = kReduce;
  other.num_items = 8;
  groups[2].begin(other);
  for (int m = 0; m < 3; ++m) static_cast<void>(groups[m].advance());
  for (int m = 0; m < 3; ++m)
    EXPECT_THAT(failure(groups[m], 2, ExitCode::kDisagree), HasSubstr("all_reduce of 8 Float"));
}

TEST(SharedMemoryGroup, ASlotIsFreeOnlyWhenAllAreDoneWithIt) {
  Groups groups;
  groups.begin(kReduce);
  for (int m = 0; m < 3; ++m) {
    EXPECT_EQ(groups[m].take_slot(), 0);
    EXPECT_EQ(groups[m].take_slot(), 1);
    groups[m].release_slot(0, groups[m].advance() + 1);
  }
  static_cast<void>(groups[0].advance());
  static_cast<void>(groups[1].advance());
  std::atomic<bool> is_done = false;
  groups[0].set_limits(60, 60);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    is_done = true;
    static_cast<void>(groups[2].advance());
  });
  EXPECT_EQ(groups[0].take_slot(), 0);
  EXPECT_TRUE(is_done);
  other.join();
}

TEST(SharedMemoryGroup, SlotsLieApart) {
  Groups groups;
  for (int m = 0; m < 3; ++m) {
    EXPECT_EQ(groups[0].slot(m, 1) - groups[0].slot(m, 0), 4096);
    EXPECT_EQ(groups[0].slot(m, 0), groups[1].slot(m, 0)) << "all see the same";
  }
  EXPECT_EQ(groups[0].extra_slot(0, 0) - groups[0].slot(0, 1), 4096);
  EXPECT_EQ(kLayout.segment_bytes(0), 4096 * 5);
  EXPECT_EQ(kLayout.segment_bytes(1), 4096 * 3);
  EXPECT_EQ(kLayout.total_bytes(), 4096 * 11);
}

}  // namespace shared_memory_group_test
}  // namespace lockstep::dist::cpu
