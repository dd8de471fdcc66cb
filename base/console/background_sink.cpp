// Lines are copied into a bounded queue. The task holds the inner sink, so it may outlive this
// object.
#include "base/console/background_sink.h"

#include <exception>
#include <utility>

#include <fmt/format.h>
#include <spdlog/details/log_msg_buffer.h>

namespace lockstep::log {
namespace {

// Limit of the memory of waiting lines.
constexpr int64_t kCapacity_bytes = 1 << 20;

std::atomic<int64_t> g_num_lost{0};

}  // namespace

BackgroundSink::BackgroundSink(std::shared_ptr<spdlog::sinks::sink> inner)
    : inner_(std::move(inner)), queue_({.thread_name = "log", .capacity_bytes = kCapacity_bytes}) {}

/// Queues a copy of the message; false if the queue is full.
bool BackgroundSink::push(const spdlog::details::log_msg& message) {
  const spdlog::details::log_msg_buffer copy(message);
  const auto write = [inner = inner_, copy] {
    try {
      inner->log(copy);
      inner->flush();
    } catch (const std::exception&) {  // a full disk costs lines, not the run
      ++g_num_lost;
    }
  };
  return queue_.push(write, static_cast<int64_t>(sizeof(copy) + message.payload.size()));
}

void BackgroundSink::log(const spdlog::details::log_msg& message) {
  // The count is taken before the notice is queued, so that no loss is reported twice.
  const int64_t num_lost = num_lost_.exchange(0);
  if (num_lost > 0) {
    const std::string text = fmt::format(
        "[log] {} lines before this one are lost here: they came faster than they were read or "
        "written",
        num_lost);
    const spdlog::details::log_msg notice(message.time, {}, message.logger_name,
                                          spdlog::level::warn, text);
    // The notice itself may be lost; then the count waits for the next line.
    if (!push(notice)) num_lost_ += num_lost;
  }
  if (!push(message)) note_lost(1);
}

void BackgroundSink::note_lost(int64_t num_lines) {
  num_lost_ += num_lines;
  g_num_lost += num_lines;
}

void BackgroundSink::set_pattern(const std::string& pattern) {
  do_later([inner = inner_, pattern] { inner->set_pattern(pattern); });
}

void BackgroundSink::set_formatter(std::unique_ptr<spdlog::formatter> formatter) {
  const std::shared_ptr<spdlog::formatter> shared = std::move(formatter);
  do_later([inner = inner_, shared] { inner->set_formatter(shared->clone()); });
}

bool BackgroundSink::do_later(TaskQueue::Task task, int64_t num_bytes, int64_t num_lines) {
  const bool is_taken =
      queue_.push(std::move(task), static_cast<int64_t>(sizeof(TaskQueue::Task)) + num_bytes);
  if (!is_taken) note_lost(num_lines);
  return is_taken;
}

int64_t num_lost_in_background() { return g_num_lost.load(std::memory_order_relaxed); }

}  // namespace lockstep::log
