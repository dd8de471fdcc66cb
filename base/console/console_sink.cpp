// Each line is one write(2) call, so lines of several processes do not mix.
#include "base/console/console_sink.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <cerrno>
#include <chrono>
#include <ctime>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace lockstep::log {
namespace {

constexpr size_t kUsualColumns = 80;
// Return, then clear to the end of the line (ECMA-48).
constexpr const char* kClearLine = "\r\x1b[K";
constexpr const char* kYellow = "\x1b[33m";
constexpr const char* kRed = "\x1b[31m";
constexpr const char* kPlain = "\x1b[0m";

/// Returns the terminal's width, which may change at any time.
size_t num_columns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsualColumns;
  return size.ws_col;
}

/// Writes to stderr without stdio, whose lock on stderr others may need while a full pipe blocks
/// this thread. Returns false if nobody reads it, or its disk is full.
bool write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t num_written = ::write(STDERR_FILENO, text.data(), text.size());
    if (num_written < 0 && errno == EAGAIN) {
      pollfd ready{STDERR_FILENO, POLLOUT, 0};
      (void)::poll(&ready, 1, /*timeout=*/-1);
    } else if (num_written < 0 && errno != EINTR) {
      return false;
    } else if (num_written > 0) {
      text.remove_prefix(static_cast<size_t>(num_written));
    }
  }
  return true;
}

/// Returns the level's name in JSON lines.
const char* level_name(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::debug:
      return "debug";
    case spdlog::level::warn:
      return "warning";
    case spdlog::level::err:
      return "error";
    default:
      return "info";
  }
}

/// Returns a time in UTC with milliseconds, as in RFC 3339.
std::string utc_text(std::chrono::system_clock::time_point when) {
  const int64_t ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(when.time_since_epoch()).count();
  const std::time_t seconds = ms / 1000;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", utc.tm_year + 1900,
                     utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, ms % 1000);
}

}  // namespace

void ConsoleSink::set_style(bool is_terminal, bool colors) {
  const std::lock_guard lock(mutex_);
  is_terminal_ = is_terminal;
  colors_ = colors;
}

void ConsoleSink::set_status(std::string_view text) {
  const std::lock_guard lock(mutex_);
  if (!is_terminal_ || (text.empty() && status_.empty())) return;
  // The cursor stays on the status line, so clearing that line makes room for the next text.
  const std::string before = cleared();
  status_ = text;
  (void)write(before + status_line());
}

void ConsoleSink::print(std::string_view text) {
  const std::lock_guard lock(mutex_);
  (void)write(cleared() + std::string(text) + status_line());
}

void ConsoleSink::sink_it_(const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t text;
  formatter_->format(message, text);
  const bool is_colored = colors_ && message.level >= spdlog::level::warn;
  std::string all = cleared();
  if (is_colored) all += message.level == spdlog::level::warn ? kYellow : kRed;
  all.append(text.data(), text.size());
  if (is_colored) all += kPlain;
  // One write, so that lines of other processes come before or after it.
  if (!write(all + status_line())) throw spdlog::spdlog_ex("stderr takes no line");
}

std::string ConsoleSink::cleared() const { return status_.empty() ? "" : kClearLine; }

std::string ConsoleSink::status_line() const {
  // One column less: a full line would wrap on some terminals.
  return status_.empty() ? "" : status_.substr(0, num_columns() - 1);
}

void JsonFormatter::format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& text) {
  // Messages begin with "[area] ", see Error and log::write().
  const std::string_view said(message.payload.data(), message.payload.size());
  const size_t end = said.find("] ");
  const nlohmann::ordered_json line{{"time", utc_text(message.time)},
                                    {"level", level_name(message.level)},
                                    {"rank", rank_},
                                    {"area", said.substr(1, end - 1)},
                                    {"message", said.substr(end + 2)}};
  const std::string json =
      line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  text.append(json.data(), json.data() + json.size());
}

std::unique_ptr<spdlog::formatter> JsonFormatter::clone() const {
  return std::make_unique<JsonFormatter>(rank_);
}

}  // namespace lockstep::log
