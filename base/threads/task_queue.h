#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace lockstep {

/// A bounded queue of tasks, done in order by one thread of its own: who adds a task never waits
/// for a pipe, a terminal or a disk.
///
///     TaskQueue queue({.thread_name = "log", .capacity_bytes = 1 << 20});
///     if (!queue.push([line] { write(line); }, line.size())) ++num_lost;
///
/// A task must not throw, and what it uses must live as long as itself: where a task never ends
/// (a disk that hangs), the destructor leaves it and the thread behind. Threads: any may call.
class TaskQueue {
 public:
  using Task = std::function<void()>;
  using Milliseconds = std::chrono::milliseconds;

  struct Options {
    std::string thread_name;           ///< as the system shows it, at most 15 letters
    int64_t capacity_bytes = 1 << 20;  ///< of the tasks that wait or are under way
    Milliseconds patience{2000};       ///< how long the destructor waits for them
    Task idle = {};                    ///< a task that the thread does when none has come for
    Milliseconds idle_time{0};         ///< so long, again and again; 0: never
  };

  /// The thread starts with the first task.
  explicit TaskQueue(const Options& options);
  ~TaskQueue();
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  /// False, and nothing is added, where the queue would hold more than its capacity; a task that
  /// finds it empty is always taken. Also false where the system gives no thread. `num_bytes` is
  /// what the task keeps in memory.
  bool push(Task task, int64_t num_bytes);

  /// Waits until all tasks added before are done; false after `timeout`. Gives up at once where an
  /// earlier call gave up and no task has ended since.
  bool drain(Milliseconds timeout);

 private:
  struct State;
  bool has_thread();
  static void work(const std::shared_ptr<State>& state);

  const Options options_;
  const std::shared_ptr<State> state_;
};

}  // namespace lockstep
