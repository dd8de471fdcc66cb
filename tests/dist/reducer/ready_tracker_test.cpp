#include "dist/reducer/overlap.h"

#include <atomic>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace lockstep::dist {
namespace ready_tracker_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<Bucket> buckets_with(const std::vector<std::vector<int64_t>>& params) {
  std::vector<Bucket> buckets;
  for (const auto& some : params) buckets.push_back({.params = some});
  return buckets;
}

TEST(ReadyTracker, ABucketIsCompleteWithItsLastParameter) {
  ReadyTracker arrivals;
  arrivals.rebuild(buckets_with({{3, 2}, {1, 0}}));
  EXPECT_FALSE(arrivals.any());
  EXPECT_FALSE(arrivals.mark_ready(3));
  EXPECT_TRUE(arrivals.any());
  EXPECT_EQ(arrivals.num_complete(), 0U);
  EXPECT_TRUE(arrivals.mark_ready(2));
  EXPECT_EQ(arrivals.num_complete(), 1U);
  EXPECT_THAT(arrivals.missing(), ElementsAre(0, 1));
}

TEST(ReadyTracker, BucketsBehindAGapWait) {
  ReadyTracker arrivals;
  arrivals.rebuild(buckets_with({{2}, {1}, {0}}));
  EXPECT_FALSE(arrivals.mark_ready(0));
  EXPECT_FALSE(arrivals.mark_ready(1));
  EXPECT_EQ(arrivals.num_complete(), 0U);
  EXPECT_TRUE(arrivals.mark_ready(2));
  EXPECT_EQ(arrivals.num_complete(), 3U);
  EXPECT_THAT(arrivals.missing(), IsEmpty());
}

TEST(ReadyTracker, OneParameterMayCompleteSeveralBuckets) {
  ReadyTracker arrivals;
  arrivals.rebuild(buckets_with({{1}, {1}, {1, 0}}));
  EXPECT_TRUE(arrivals.mark_ready(1));
  EXPECT_EQ(arrivals.num_complete(), 2U);
}

TEST(ReadyTracker, APieceIsCompleteOnceItsElementsAreWritten) {
  ReadyTracker arrivals;
  arrivals.rebuild({{.begin_E = 5, .end_E = 15, .params = {2}},
                    {.begin_E = 15, .end_E = 30, .params = {2}},
                    {.begin_E = 30, .end_E = 35, .params = {1, 0}}});
  EXPECT_FALSE(arrivals.mark_written(2, 9));
  EXPECT_TRUE(arrivals.mark_written(2, 10));
  EXPECT_FALSE(arrivals.mark_written(2, 24));
  EXPECT_EQ(arrivals.num_complete(), 1U);
  EXPECT_FALSE(arrivals.any()) << "the gradient is not there as a whole";
  EXPECT_TRUE(arrivals.mark_written(2, 25));
  EXPECT_FALSE(arrivals.mark_ready(2)) << "all its buckets were complete";
  EXPECT_FALSE(arrivals.mark_written(1, 5)) << "the other gradient of the bucket is not there";
  EXPECT_EQ(arrivals.num_complete(), 2U);
  EXPECT_FALSE(arrivals.mark_ready(1));
  EXPECT_TRUE(arrivals.mark_ready(0));
  EXPECT_THROW(arrivals.mark_written(2, 25), Error) << "a second gradient";
  EXPECT_FALSE(arrivals.mark_written(7, 1)) << "in no bucket";

  arrivals.begin();
  EXPECT_EQ(arrivals.num_complete(), 0U);
  EXPECT_TRUE(arrivals.mark_ready(2));
  EXPECT_EQ(arrivals.num_complete(), 2U);
}

TEST(ReadyTracker, BucketsWithoutParametersAreNeverComplete) {
  ReadyTracker arrivals;
  arrivals.rebuild(buckets_with({{0}, {}, {1}}));
  arrivals.mark_ready(0);
  arrivals.mark_ready(1);
  EXPECT_EQ(arrivals.num_complete(), 1U);
}

TEST(ReadyTracker, ParametersInNoBucketDoNotCount) {
  ReadyTracker arrivals;
  arrivals.rebuild(buckets_with({{2}}));
  EXPECT_FALSE(arrivals.mark_ready(1));
  EXPECT_FALSE(arrivals.mark_ready(1));
  EXPECT_FALSE(arrivals.mark_ready(7));
  EXPECT_FALSE(arrivals.any());
}

TEST(ReadyTracker, BeginAgainEachStep) {
  ReadyTracker arrivals;
  arrivals.rebuild(buckets_with({{0}}));
  EXPECT_TRUE(arrivals.mark_ready(0));
  EXPECT_THROW(arrivals.mark_ready(0), Error) << "twice in a step";
  arrivals.begin();
  EXPECT_EQ(arrivals.num_complete(), 0U);
  EXPECT_TRUE(arrivals.mark_ready(0));
}

TEST(ReadyTracker, ComeFromSeveralThreads) {
  std::vector<std::vector<int64_t>> params(50);
  for (int64_t i = 0; i < 400; ++i) params[static_cast<size_t>(i % 50)].push_back(i);
  ReadyTracker arrivals;
  arrivals.rebuild(buckets_with(params));
  for (int round = 0; round < 20; ++round) {
    arrivals.begin();
    std::vector<int> written(400, 0);  // as gradients are: by the thread that lets them mark_ready
    std::atomic<size_t> most = 0;
    std::vector<std::thread> threads;
    for (int64_t t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (int64_t i = t; i < 400; i += 4) {
          written[static_cast<size_t>(i)] = 1;
          if (arrivals.mark_ready(i)) most = std::max(most.load(), arrivals.num_complete());
        }
      });
    std::thread reader([&] {
      size_t seen = 0;
      while (seen < 50) {
        const size_t num_complete = arrivals.num_complete();
        for (; seen < num_complete; ++seen)
          for (const int64_t i : params[seen]) EXPECT_EQ(written[static_cast<size_t>(i)], 1);
        std::this_thread::yield();
      }
    });
    for (std::thread& thread : threads) thread.join();
    reader.join();
    EXPECT_EQ(arrivals.num_complete(), 50U);
  }
}

}  // namespace ready_tracker_test
}  // namespace lockstep::dist
