#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

/// Helpers for threads: blocked signals, watchdog timer, task queue, background values.
namespace lockstep {

/// Blocks all signals for this thread during its lifetime, and permanently for threads started
/// meanwhile. So signals go only to the threads that handle them.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

/// Waits until a thread is asked to stop; false after `limit`.
bool stops_within(std::chrono::duration<double> limit, const std::stop_token& stop);

/// Watchdog timer: runs `action` once, on a separate thread, unless it is destroyed before `limit`
/// has passed. For waits without their own timeout (a network, a disk, MPI's start). What `action`
/// needs must outlive this; it must not throw. The destructor waits for a running action.
///
///     const Deadline end(std::chrono::seconds(5), [] { std::_Exit(79); });
///     write_to_a_disk_that_may_hang();
class Deadline {
 public:
  Deadline(std::chrono::duration<double> limit, std::function<void()> action);

 private:
  std::jthread thread_;
};

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

/// Value whose computation may block without end (a hanging mount). A separate thread computes it.
/// The caller waits at most for a limit and then gets an older value.
///
///     BackgroundValue<int64_t> free_bytes("space", [path] { return free_bytes_of(path); });
///     const auto answer = free_bytes.get(std::chrono::seconds(1));
///
/// `make` may throw. Everything that it uses must live as long as `make` itself. A `make` that
/// never ends is left running with its thread. Thread-safe.
template <class T>
class BackgroundValue {
 public:
  struct Answer {
    std::optional<T> value;  ///< the newest one; nullopt if there was never one
    std::string fault;       ///< why it is an older one or missing; empty: computed for this call
  };

  BackgroundValue(const std::string& thread_name, std::function<T()> make)
      : state_(std::make_shared<State>(std::move(make))),
        queue_({.thread_name = thread_name, .patience = TaskQueue::Milliseconds(0)}) {}

  /// Computes the value again. If an earlier call waited in vain and that computation is still
  /// running, it does not wait again.
  Answer get(TaskQueue::Milliseconds limit) {
    if (!state_->ask() && !queue_.push([state = state_] { state->renew(); }, 1))
      state_->give_up("cannot start a thread");
    const bool is_done = queue_.drain(limit);
    return state_->answer(is_done);
  }

 private:
  class State {
   public:
    explicit State(std::function<T()> make) : make_(std::move(make)) {}

    /// Requests a computation. Returns true if one is queued that has not started, which serves
    /// this call too.
    bool ask() {
      const std::lock_guard lock(mutex_);
      return std::exchange(is_asked_, true);
    }
    void give_up(const std::string& why) {
      const std::lock_guard lock(mutex_);
      is_asked_ = false;
      fault_ = why;
    }
    void renew() {
      give_up("");
      try {
        T made = make_();
        const std::lock_guard lock(mutex_);
        value_ = std::move(made);
      } catch (const std::exception& fault) {
        const std::lock_guard lock(mutex_);
        fault_ = fault.what();
      }
    }
    Answer answer(bool is_done) {
      const std::lock_guard lock(mutex_);
      return {value_, is_done ? fault_ : "no answer in time"};
    }

   private:
    const std::function<T()> make_;
    std::mutex mutex_;
    bool is_asked_ = false;
    std::optional<T> value_;
    std::string fault_;
  };

  const std::shared_ptr<State> state_;
  TaskQueue queue_;
};

}  // namespace lockstep
