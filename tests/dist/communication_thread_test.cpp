#include "dist/reducer/overlap.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace lockstep::dist {
namespace communication_thread_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Lets a job wait until the test says so.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
};

TEST(CommunicationThread, DoesWhatWasReleasedInOrder) {
  std::vector<size_t> done;
  CommunicationThread thread([&](size_t job) { done.push_back(job); });
  thread.begin();
  thread.release(2);
  thread.release(1);  // no effect
  thread.release(5);
  size_t num_done = thread.end();
  for (; num_done < 5; ++num_done) done.push_back(num_done);  // as finish() does the rest
  EXPECT_THAT(done, ElementsAre(0, 1, 2, 3, 4));
}

TEST(CommunicationThread, DoesNothingUnasked) {
  CommunicationThread thread([](size_t) { ADD_FAILURE(); });
  thread.begin();
  EXPECT_EQ(thread.end(), 0U);
  thread.release(3);  // no round is open
  thread.begin();
  EXPECT_EQ(thread.end(), 0U);
}

TEST(CommunicationThread, EndWaitsForTheJobUnderWayAndStartsNoOther) {
  Gate started, finish;
  std::vector<size_t> done;
  CommunicationThread thread([&](size_t job) {
    started.open();
    finish.pass();
    done.push_back(job);
  });
  thread.begin();
  thread.release(1);
  started.pass();
  std::thread opener([&] { finish.open(); });
  EXPECT_EQ(thread.end(), 1U);
  EXPECT_THAT(done, ElementsAre(0));
  opener.join();
}

TEST(CommunicationThread, RoundsBeginAtZero) {
  std::atomic<int> sum = 0;
  CommunicationThread thread([&](size_t job) { sum += static_cast<int>(job) + 1; });
  for (int round = 0; round < 200; ++round) {
    sum = 0;
    thread.begin();
    for (size_t i = 1; i <= 4; ++i) thread.release(i);
    for (size_t i = thread.end(); i < 4; ++i) sum += static_cast<int>(i) + 1;
    EXPECT_EQ(sum, 10) << round;
  }
}

TEST(CommunicationThread, AFaultEndsTheRoundAndComesOutOfEnd) {
  std::vector<size_t> begun;
  CommunicationThread thread([&](size_t job) {
    begun.push_back(job);
    if (job == 1) throw std::runtime_error("no");
  });
  thread.begin();
  thread.release(4);
  EXPECT_FALSE(thread.wait_for(4)) << "the thread itself says that it does no further one";
  EXPECT_THROW(thread.end(), std::runtime_error);
  EXPECT_THAT(begun, ElementsAre(0, 1));
  thread.begin();
  thread.release(1);
  EXPECT_LE(thread.end(), 1U) << "another round is not marked by it";
}

TEST(CommunicationThread, MayEndInTheMidstOfARound) {
  std::atomic<int> num_done = 0;
  {
    CommunicationThread thread([&](size_t) { ++num_done; });
    thread.begin();
    thread.release(1000000);
  }
  const int then = num_done;
  EXPECT_LT(then, 1000000);
}

TEST(CommunicationThread, CallsOutOfTurnAreBugs) {
  CommunicationThread thread([](size_t) {});
  EXPECT_THROW(thread.end(), Error);
  thread.begin();
  EXPECT_THROW(thread.begin(), Error);
}

}  // namespace communication_thread_test
}  // namespace lockstep::dist
