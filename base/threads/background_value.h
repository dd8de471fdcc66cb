#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/threads/task_queue.h"

namespace lockstep {

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
      state_->give_up("no thread can be started");
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
