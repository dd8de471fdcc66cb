#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <spdlog/sinks/sink.h>

#include "base/threads/task_queue.h"

namespace lockstep::log {

/// A sink whose lines are written by a thread of its own, so that who logs never waits for a
/// terminal, a pipe or a disk. Lines that find the queue full (a reader that has stopped, a disk
/// that hangs) are lost, counted, and told of in the next line that is written. Any thread.
class BackgroundSink final : public spdlog::sinks::sink {
 public:
  explicit BackgroundSink(std::shared_ptr<spdlog::sinks::sink> inner);

  void log(const spdlog::details::log_msg& message) override;
  void flush() override {}  // the thread flushes after each line
  void set_pattern(const std::string& pattern) override;
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override;

  /// Done by the thread after all lines before it. False where the queue is full: then `num_lines`
  /// count as lost. `num_bytes` is what the task keeps in memory.
  bool do_later(TaskQueue::Task task, int64_t num_bytes = 0, int64_t num_lines = 0);
  /// Waits for all lines so far; false after `timeout`.
  bool drain(TaskQueue::Milliseconds timeout) { return queue_.drain(timeout); }

 private:
  bool push(const spdlog::details::log_msg& message);
  void note_lost(int64_t num_lines);

  const std::shared_ptr<spdlog::sinks::sink> inner_;
  std::atomic<int64_t> num_lost_{0};  // since the last line that was taken
  TaskQueue queue_;
};

/// Lines that background sinks of this process have lost since it began.
int64_t num_lost_in_background();

}  // namespace lockstep::log
