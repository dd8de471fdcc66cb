#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include <spdlog/formatter.h>
#include <spdlog/sinks/base_sink.h>

namespace lockstep::log {

/// stderr, with a line that stays below all others where it is a terminal. Any thread.
class ConsoleSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void set_style(bool is_terminal, bool colors);
  /// What stands below from now on; "": nothing.
  void set_status(std::string_view text);
  /// As it is, between the lines.
  void print(std::string_view text);

 private:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}
  std::string cleared() const;
  std::string status_line() const;

  bool is_terminal_ = false, colors_ = false;
  std::string status_;
};

/// {"time": "2026-01-31T12:00:00.123Z", "level": "info", "rank": 0, "area": "run", "message": ...}
/// of a text "[area] message", one a line. Bytes that are no UTF-8 are replaced.
class JsonFormatter final : public spdlog::formatter {
 public:
  explicit JsonFormatter(int rank) : rank_(rank) {}
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& text) override;
  std::unique_ptr<spdlog::formatter> clone() const override;

 private:
  int rank_;
};

}  // namespace lockstep::log
