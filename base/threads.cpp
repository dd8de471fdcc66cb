#include "base/threads.h"

#include <condition_variable>
#include <deque>
#include <system_error>

#include <pthread.h>

namespace lockstep {

Deadline::Deadline(std::chrono::duration<double> limit, std::function<void()> action) {
  // The thread inherits the blocked signals; the main thread handles them.
  const SignalsBlocked inherited_by_the_thread;
  thread_ = std::jthread([limit, action = std::move(action)](const std::stop_token& is_over) {
    if (!stops_within(limit, is_over)) action();
  });
}

bool stops_within(std::chrono::duration<double> limit, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any wake;
  std::unique_lock lock(mutex);
  // The wait may say false although a stop was requested before it slept, so the token is asked.
  wake.wait_for(lock, stop, limit, [] { return false; });
  return stop.stop_requested();
}

// TaskQueue: the state is shared with the thread, so that a thread left behind can still use it.

struct TaskQueue::State {
  struct Entry {
    Task task;
    int64_t num_bytes = 0;
  };

  // Counts the bytes of waiting and running tasks.
  void add(Entry entry) {
    waiting.push_back(std::move(entry));
    held_bytes += waiting.back().num_bytes;
    ++num_added;
  }
  void wait_for_work(std::unique_lock<std::mutex>& lock);

  std::mutex mutex;
  std::condition_variable has_work, has_ended;  // of a task, or the queue
  std::deque<Entry> waiting;
  Task idle;
  Milliseconds idle_time{0};
  int64_t held_bytes = 0;  // by waiting tasks and the running one
  uint64_t num_added = 0, num_done = 0;
  uint64_t num_done_when_given_up = ~uint64_t{0};
  bool is_closed = false;
  std::thread thread;
};

TaskQueue::TaskQueue(const Options& options)
    : options_(options), state_(std::make_shared<State>()) {
  state_->idle = options.idle;
  state_->idle_time = options.idle_time;
}

TaskQueue::~TaskQueue() {
  // Lets the tasks finish, for at most `patience`.
  const bool is_done = drain(options_.patience);
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_closed = true;
    // The running task hangs, so the waiting ones will never run.
    if (!is_done) state_->waiting.clear();
  }
  state_->has_work.notify_one();
  if (!state_->thread.joinable()) return;
  if (is_done)
    state_->thread.join();
  else
    state_->thread.detach();
}

bool TaskQueue::push(Task task, int64_t num_bytes) {
  const std::lock_guard lock(state_->mutex);
  if (state_->held_bytes > 0 && state_->held_bytes + num_bytes > options_.capacity_bytes)
    return false;
  if (!has_thread()) return false;
  state_->add({std::move(task), num_bytes});
  state_->has_work.notify_one();
  return true;
}

/// Starts the thread if needed; false if the system gives none. The lock must be held.
bool TaskQueue::has_thread() {
  if (state_->thread.joinable()) return true;
  // The thread inherits the blocked signals.
  const SignalsBlocked blocked;
  try {
    state_->thread = std::thread([state = state_] { work(state); });
  } catch (const std::system_error&) {
    return false;
  }
  ::pthread_setname_np(state_->thread.native_handle(), options_.thread_name.c_str());
  return true;
}

bool TaskQueue::drain(Milliseconds timeout) {
  std::unique_lock lock(state_->mutex);
  const uint64_t wanted = state_->num_added;
  const auto is_done = [&] { return state_->num_done >= wanted; };
  if (is_done()) return true;
  // A task hangs: do not wait again for the same one.
  if (state_->num_done_when_given_up == state_->num_done) return false;
  if (state_->has_ended.wait_for(lock, timeout, is_done)) return true;
  state_->num_done_when_given_up = state_->num_done;
  return false;
}

/// Waits for a task or, after idle_time, adds the idle task. It is queued like others, so that
/// drain() waits for it.
void TaskQueue::State::wait_for_work(std::unique_lock<std::mutex>& lock) {
  const auto is_over = [&] { return is_closed || !waiting.empty(); };
  if (idle_time.count() <= 0) return has_work.wait(lock, is_over);
  if (!has_work.wait_for(lock, idle_time, is_over)) add({idle, 0});
}

void TaskQueue::work(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  for (;;) {
    state->wait_for_work(lock);
    if (state->waiting.empty()) return;
    State::Entry entry = std::move(state->waiting.front());
    state->waiting.pop_front();
    lock.unlock();
    // Without the lock, since the task may block.
    entry.task();
    entry.task = nullptr;  // free its memory before its bytes are given back
    lock.lock();
    state->held_bytes -= entry.num_bytes;
    ++state->num_done;
    state->has_ended.notify_all();
  }
}

}  // namespace lockstep
