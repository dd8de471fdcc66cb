// Memory of shard images: chunks are used again, never twice at a time.
#include <cstdlib>
#include <future>
#include <set>

#include <gtest/gtest.h>

#include "checkpoint/save/staging_buffer.h"

namespace lockstep::checkpoint {
namespace staging_buffer_test {

constexpr int64_t kChunk = StagingBuffer::kChunkBytes;

TEST(StagingBuffer, ChunksInUseAreDistinct) {
  StagingBuffer memory;
  memory.reserve(5 * kChunk - 1);
  std::set<char*> chunks;
  for (int i = 0; i < 5; ++i) chunks.insert(memory.take());  // although none is given back
  EXPECT_EQ(chunks.size(), 5);
  for (char* const chunk : chunks) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(chunk) % (1 << 21), 0);
    for (char* const other : chunks)
      EXPECT_TRUE(other == chunk || std::abs(other - chunk) >= kChunk);
  }
}

TEST(StagingBuffer, ChunksThatWereGivenBackAreUsedAgain) {
  StagingBuffer memory;
  memory.reserve(9 * kChunk);
  char* chunk = memory.take();
  for (int i = 0; i < 8; ++i) {
    memory.give_back(chunk);
    chunk = memory.take();
  }
  EXPECT_EQ(memory.num_touched(), 1);
}

TEST(StagingBuffer, TheNextImageBeginsWithTheTouchedChunks) {
  StagingBuffer memory;
  memory.reserve(3 * kChunk);
  const std::set<char*> first{memory.take(), memory.take()};
  memory.reserve(2 * kChunk);
  EXPECT_EQ((std::set<char*>{memory.take(), memory.take()}), first);
  EXPECT_EQ(memory.num_touched(), 2);
  memory.reserve(4 * kChunk);  // larger than the memory
  std::set<char*> chunks;
  for (int i = 0; i < 4; ++i) chunks.insert(memory.take());
  EXPECT_EQ(chunks.size(), 4);
}

TEST(StagingBuffer, TouchedMemoryIsTakenWithoutWaiting) {
  StagingBuffer memory;
  memory.reserve(4 * kChunk);
  memory.touch();
  EXPECT_EQ(memory.num_touched(), 4);
  std::set<char*> chunks;
  for (int i = 0; i < 4; ++i) chunks.insert(memory.take());
  EXPECT_EQ(chunks.size(), 4);
  EXPECT_EQ(memory.num_touched(), 4);
}

TEST(StagingBuffer, AnotherThreadMayGiveBack) {
  constexpr int kNum = 200;
  StagingBuffer memory;
  memory.reserve(kNum * kChunk);
  std::future<void> earlier;
  for (int i = 0; i < kNum; ++i) {
    char* const chunk = memory.take();
    std::fill_n(chunk, 100, static_cast<char>(i));
    if (earlier.valid()) earlier.get();
    earlier = std::async(std::launch::async, [&memory, chunk, i] {
      EXPECT_EQ(chunk[99], static_cast<char>(i));  // not in use elsewhere
      memory.give_back(chunk);
    });
  }
  earlier.get();
}

}  // namespace staging_buffer_test
}  // namespace lockstep::checkpoint
