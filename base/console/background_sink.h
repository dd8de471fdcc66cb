#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <spdlog/sinks/sink.h>

#include "base/threads/task_queue.h"

namespace lockstep::log {

/// Sink whose lines are written by a separate thread. So logging never waits for a terminal, a pipe
/// or a disk. Lines are lost if the queue is full (a reader stopped, a disk hangs). They are
/// counted and reported in the next written line. Thread-safe.
class BackgroundSink final : public spdlog::sinks::sink {
 public:
  explicit BackgroundSink(std::shared_ptr<spdlog::sinks::sink> inner);

  void log(const spdlog::details::log_msg& message) override;
  void flush() override {}  // the thread flushes after each line
  void set_pattern(const std::string& pattern) override;
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override;

  /// Runs a task on the thread after all lines before it. Returns false if the queue is full; then
  /// `num_lines` count as lost. `num_bytes` is the memory that the task holds.
  bool do_later(TaskQueue::Task task, int64_t num_bytes = 0, int64_t num_lines = 0);
  /// Waits for all lines so far; false after `timeout`.
  bool drain(TaskQueue::Milliseconds timeout) { return queue_.drain(timeout); }

 private:
  bool push(const spdlog::details::log_msg& message);
  void note_lost(int64_t num_lines);

  const std::shared_ptr<spdlog::sinks::sink> inner_;
  std::atomic<int64_t> num_lost_{0};  // since the last accepted line
  TaskQueue queue_;
};

/// Returns the number of lines that background sinks of this process have lost.
int64_t num_lost_in_background();

}  // namespace lockstep::log
