#include "dist/mpi/shm/shared_memory_group.h"

#include <atomic>
#include <memory>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace lockstep::dist::mpi {
namespace {

using ::testing::HasSubstr;

constexpr RoomLayout kLayout{.num_members = 3, .num_slots = 2, .num_extra = 1, .slot_bytes = 4096};

/// A room of three, whose members are objects of one thread.
class Rooms {
 public:
  Rooms() {
    std::vector<std::byte*> segments_M;
    std::vector<Peer> peers_M(kLayout.num_members);
    for (int m = 0; m < kLayout.num_members; ++m) {
      const auto num_bytes = static_cast<size_t>(kLayout.segment_bytes(m));
      memory_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(4096, num_bytes)));
      segments_M.push_back(memory_.back().get());
      peers_M[m].world_rank = 10 + m;
    }
    for (int m = 0; m < kLayout.num_members; ++m) {
      rooms_.emplace_back(segments_M, m, kLayout, peers_M);
      rooms_.back().set_timeout_s(0.05);
    }
  }

  SharedMemoryGroup& operator[](int member) { return rooms_[member]; }
  void begin(const Call& call) {
    for (SharedMemoryGroup& room : rooms_) room.begin(call);
  }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::vector<std::unique_ptr<std::byte, Free>> memory_;
  std::vector<SharedMemoryGroup> rooms_;
};

const Call kReduce{.kind = CallKind::kAllReduce, .dtype = 6, .num_items = 7};

/// What the wait throws.
std::string failure(SharedMemoryGroup& room, uint64_t count, ExitCode code) {
  try {
    room.wait_for_all(count);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  ADD_FAILURE() << "nobody was missed";
  return {};
}

TEST(SharedMemoryGroup, AStepIsOverWhenAllHaveMadeIt) {
  Rooms rooms;
  rooms.begin(kReduce);
  for (int m = 0; m < 3; ++m) EXPECT_EQ(rooms[m].tick(), 1U);
  for (int m = 0; m < 3; ++m) rooms[m].wait_for_all(1);
}

TEST(SharedMemoryGroup, NamesWhoIsFurthestBehind) {
  Rooms rooms;
  rooms.begin(kReduce);
  for (int step = 0; step < 3; ++step) static_cast<void>(rooms[0].tick());
  for (int step = 0; step < 2; ++step) static_cast<void>(rooms[1].tick());
  static_cast<void>(rooms[2].tick());
  const std::string text = failure(rooms[0], 3, ExitCode::kWatchdog);
  EXPECT_THAT(text, HasSubstr("all_reduce of 7 Float (sum), call 1: waited 0."));
  EXPECT_THAT(text, HasSubstr("rank 12 "));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("rank 11 ")));
}

TEST(SharedMemoryGroup, UnequalCallsAreNoticedByAll) {
  Rooms rooms;
  rooms.begin(kReduce);
  for (int m = 0; m < 3; ++m) static_cast<void>(rooms[m].tick());
  for (int m = 0; m < 3; ++m) rooms[m].wait_for_all(1);
  for (int m = 0; m < 2; ++m) rooms[m].begin(kReduce);
  Call other = kReduce;
  other.num_items = 8;
  rooms[2].begin(other);
  for (int m = 0; m < 3; ++m) static_cast<void>(rooms[m].tick());
  for (int m = 0; m < 3; ++m)
    EXPECT_THAT(failure(rooms[m], 2, ExitCode::kDisagree), HasSubstr("all_reduce of 8 Float"));
}

TEST(SharedMemoryGroup, ASlotIsFreeOnlyWhenAllAreDoneWithIt) {
  Rooms rooms;
  rooms.begin(kReduce);
  for (int m = 0; m < 3; ++m) {
    EXPECT_EQ(rooms[m].take_slot(), 0);
    EXPECT_EQ(rooms[m].take_slot(), 1);
    rooms[m].release_slot(0, rooms[m].tick() + 1);
  }
  static_cast<void>(rooms[0].tick());
  static_cast<void>(rooms[1].tick());
  std::atomic<bool> is_done = false;
  rooms[0].set_timeout_s(60);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    is_done = true;
    static_cast<void>(rooms[2].tick());
  });
  EXPECT_EQ(rooms[0].take_slot(), 0);
  EXPECT_TRUE(is_done);
  other.join();
}

TEST(SharedMemoryGroup, SlotsLieApart) {
  Rooms rooms;
  for (int m = 0; m < 3; ++m) {
    EXPECT_EQ(rooms[0].slot(m, 1) - rooms[0].slot(m, 0), 4096);
    EXPECT_EQ(rooms[0].slot(m, 0), rooms[1].slot(m, 0)) << "all see the same";
  }
  EXPECT_EQ(rooms[0].extra_slot(0, 0) - rooms[0].slot(0, 1), 4096);
  EXPECT_EQ(kLayout.segment_bytes(0), 4096 * 5);
  EXPECT_EQ(kLayout.segment_bytes(1), 4096 * 3);
  EXPECT_EQ(kLayout.total_bytes(), 4096 * 11);
}

}  // namespace
}  // namespace lockstep::dist::mpi
