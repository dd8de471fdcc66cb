#include "base/threads.h"

#include <atomic>
#include <csignal>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <pthread.h>

#include "tests/support/patience.h"

namespace lockstep {
namespace task_queue_test {

using Milliseconds = TaskQueue::Milliseconds;

constexpr Milliseconds kLong{20'000}, kShort{50};

/// Holds the queue's thread until it is opened or goes.
class Gate {
 public:
  ~Gate() { open(); }
  void open() {
    if (!std::exchange(is_open_, true)) promise_.set_value();
  }
  TaskQueue::Task task() {
    return [future = promise_.get_future().share()] { future.wait(); };
  }

 private:
  bool is_open_ = false;
  std::promise<void> promise_;
};

TEST(TaskQueue, TasksOfAllThreadsAreDoneOnceAndInTheOrderOfEachThread) {
  constexpr int kNumThreads = 3, kNumTasks = 500;
  std::vector<std::vector<int>> seen(kNumThreads);
  TaskQueue queue({.thread_name = "order"});
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kNumThreads; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < kNumTasks; ++i)
          EXPECT_TRUE(queue.push([&, t, i] { seen[static_cast<size_t>(t)].push_back(i); }, 1));
      });
  }
  ASSERT_TRUE(queue.drain(kLong));
  std::vector<int> wanted(kNumTasks);
  for (int i = 0; i < kNumTasks; ++i) wanted[static_cast<size_t>(i)] = i;
  for (const std::vector<int>& one : seen) EXPECT_EQ(one, wanted);
}

TEST(TaskQueue, AFullOneRefusesUntilATaskHasEnded) {
  Gate gate;
  std::atomic<int> num_done = 0;
  TaskQueue queue({.thread_name = "full", .capacity_bytes = 10});
  EXPECT_TRUE(queue.push(gate.task(), 100)) << "an empty queue takes any task";
  EXPECT_FALSE(queue.push([&] { ++num_done; }, 1));
  gate.open();
  ASSERT_TRUE(queue.drain(kLong));
  EXPECT_TRUE(queue.push([&] { ++num_done; }, 10));
  ASSERT_TRUE(queue.drain(kLong));
  EXPECT_EQ(num_done, 1);
}

TEST(TaskQueue, WhoWaitsGivesUpOnceAndNotAgainUntilATaskHasEnded) {
  Gate gate;
  TaskQueue queue({.thread_name = "stuck"});
  EXPECT_TRUE(queue.push(gate.task(), 1));
  EXPECT_FALSE(queue.drain(kShort));
  const tests::Patience patience(10);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(queue.drain(Milliseconds(1000)));
  EXPECT_TRUE(patience.is_kept());
  gate.open();
  while (!queue.drain(kLong)) std::this_thread::yield();  // the gate's task has not ended yet
}

TEST(TaskQueue, EndsAlthoughATaskDoesNotAndDropsWhatWaits) {
  Gate gate;
  const auto num_done = std::make_shared<std::atomic<int>>(0);
  const tests::Patience patience(5);
  {
    TaskQueue queue({.thread_name = "hang", .patience = kShort});
    EXPECT_TRUE(queue.push(gate.task(), 1));
    EXPECT_TRUE(queue.push([num_done] { ++*num_done; }, 1));
  }
  EXPECT_TRUE(patience.is_kept());
  gate.open();
  EXPECT_TRUE(tests::stays_true([&] { return *num_done == 0; }, 0.05));
}

TEST(TaskQueue, ItsEndWaitsForTasksThatDo) {
  int num_done = 0;
  {
    TaskQueue queue({.thread_name = "end"});
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(queue.push([&] { ++num_done; }, 1));
  }
  EXPECT_EQ(num_done, 100);
}

TEST(TaskQueue, ItsThreadHasItsNameAndTakesNoSignal) {
  std::promise<std::string> name;
  std::promise<bool> takes_term;
  TaskQueue queue({.thread_name = "named_queue"});
  EXPECT_TRUE(queue.push(
      [&] {
        char text[32] = "";
        while (std::string(text) != "named_queue")  // it is named by who started it
          ::pthread_getname_np(::pthread_self(), text, sizeof(text));
        name.set_value(text);
        sigset_t blocked;
        ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
        takes_term.set_value(::sigismember(&blocked, SIGTERM) == 0);
      },
      1));
  EXPECT_EQ(name.get_future().get(), "named_queue");
  EXPECT_FALSE(takes_term.get_future().get());
}

}  // namespace task_queue_test
}  // namespace lockstep
