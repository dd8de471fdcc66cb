#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include <spdlog/formatter.h>
#include <spdlog/sinks/base_sink.h>

namespace lockstep::log {

/// Sink for stderr, with a status line below all others on a terminal. Thread-safe.
class ConsoleSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void set_style(bool is_terminal, bool colors);
  /// Sets the status line; "" removes it.
  void set_status(std::string_view text);
  /// Writes the text unchanged between the lines.
  void print(std::string_view text);

 private:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}
  std::string cleared() const;
  std::string status_line() const;

  bool is_terminal_ = false, colors_ = false;
  std::string status_;
};

/// Formatter for JSON, one object per line, of a text "[area] message": {"time":
/// "2026-01-31T12:00:00.123Z", "level": "info", "rank": 0, "area": "run", "message": ...}. Invalid
/// UTF-8 is replaced.
class JsonFormatter final : public spdlog::formatter {
 public:
  explicit JsonFormatter(int rank) : rank_(rank) {}
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& text) override;
  std::unique_ptr<spdlog::formatter> clone() const override;

 private:
  int rank_;
};

}  // namespace lockstep::log
