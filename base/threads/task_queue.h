#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace lockstep {

/// Bounded queue of tasks, executed in order by one separate thread. A thread that adds a task
/// never waits for a pipe, a terminal or a disk.
///
///     TaskQueue queue({.thread_name = "log", .capacity_bytes = 1 << 20});
///     if (!queue.push([line] { write(line); }, line.size())) ++num_lost;
///
/// A task must not throw. Everything that it uses must live as long as the task. If it never ends
/// (a hanging disk), the destructor leaves it running with its thread. Thread-safe.
class TaskQueue {
 public:
  using Task = std::function<void()>;
  using Milliseconds = std::chrono::milliseconds;

  struct Options {
    std::string thread_name;           ///< as the system shows it, at most 15 characters
    int64_t capacity_bytes = 1 << 20;  ///< sum over waiting and running tasks
    Milliseconds patience{2000};       ///< how long the destructor waits for them
    Task idle = {};                    ///< task that the thread runs repeatedly whenever
    Milliseconds idle_time{0};         ///< none has arrived for this time; 0: never
  };

  /// Makes a queue; the thread starts with the first task.
  explicit TaskQueue(const Options& options);
  ~TaskQueue();
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  /// Adds a task. Returns false, without adding it, if the queue would exceed its capacity or the
  /// system gives no thread. An empty queue accepts any task. `num_bytes` is the memory that the
  /// task holds.
  bool push(Task task, int64_t num_bytes);

  /// Waits until all earlier tasks are done; false after `timeout`. Returns false at once if an
  /// earlier call timed out and no task has ended since.
  bool drain(Milliseconds timeout);

 private:
  struct State;
  bool has_thread();
  static void work(const std::shared_ptr<State>& state);

  const Options options_;
  const std::shared_ptr<State> state_;
};

}  // namespace lockstep
