// The log, and its sinks for stderr.
#include "base/log.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <spdlog/details/log_msg_buffer.h>
#include <spdlog/formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/ringbuffer_sink.h>
#include <spdlog/sinks/sink.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "base/process.h"
#include "base/threads.h"

namespace lockstep::log {

namespace {

// Limit of the memory of waiting lines.
constexpr int64_t kCapacity_bytes = 1 << 20;

// Lines that background sinks of this process have lost, and that number at count_anew().
std::atomic<int64_t> g_num_lost{0};
std::atomic<int64_t> g_num_lost_before{0};
// Counters of lines by level, for metrics and the summary.
std::array<std::atomic<int64_t>, kLevelNames.size()> g_num_lines{};

/// Sink whose lines are written by a separate thread. So logging never waits for a terminal, a pipe
/// or a disk. Lines are copied into a bounded queue. They are lost if it is full (a reader stopped,
/// a disk hangs), counted, and reported in the next written line. A task holds the inner sink, so
/// it may outlive this object. Thread-safe.
class BackgroundSink final : public spdlog::sinks::sink {
 public:
  explicit BackgroundSink(std::shared_ptr<spdlog::sinks::sink> inner)
      : inner_(std::move(inner)),
        queue_({.thread_name = "log", .capacity_bytes = kCapacity_bytes}) {}

  void log(const spdlog::details::log_msg& message) override {
    // The count is taken before the notice is queued, so that no loss is reported twice.
    const int64_t num_lost = num_lost_.exchange(0);
    if (num_lost > 0) {
      const std::string text = fmt::format(
          "[log] {} lines before this one are lost: they were logged faster than they were read or "
          "written",
          num_lost);
      const spdlog::details::log_msg notice(message.time, {}, message.logger_name,
                                            spdlog::level::warn, text);
      // The notice itself may be lost; then the count waits for the next line.
      if (!push(notice)) num_lost_ += num_lost;
    }
    if (!push(message)) note_lost(1);
  }
  void flush() override {}  // the thread flushes after each line
  void set_pattern(const std::string& pattern) override {
    do_later([inner = inner_, pattern] { inner->set_pattern(pattern); });
  }
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override {
    const std::shared_ptr<spdlog::formatter> shared = std::move(formatter);
    do_later([inner = inner_, shared] { inner->set_formatter(shared->clone()); });
  }

  /// Runs a task on the thread after all lines before it. If the queue is full, `num_lines` count
  /// as lost. `num_bytes` is the memory that the task holds.
  void do_later(TaskQueue::Task task, int64_t num_bytes = 0, int64_t num_lines = 0) {
    if (!queue_.push(std::move(task), static_cast<int64_t>(sizeof(TaskQueue::Task)) + num_bytes))
      note_lost(num_lines);
  }
  /// Waits for all lines so far; false after `timeout`.
  bool drain(TaskQueue::Milliseconds timeout) { return queue_.drain(timeout); }

 private:
  /// Queues a copy of the message; false if the queue is full.
  bool push(const spdlog::details::log_msg& message) {
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
  void note_lost(int64_t num_lines) {
    num_lost_ += num_lines;
    g_num_lost += num_lines;
  }

  const std::shared_ptr<spdlog::sinks::sink> inner_;
  std::atomic<int64_t> num_lost_{0};  // since the last accepted line
  TaskQueue queue_;
};

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
/// this thread. Returns false if no process reads it, or its disk is full.
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

/// Sink for stderr, with a status line below all others on a terminal. Each line is one write(2)
/// call, so lines of several processes do not mix. Thread-safe.
class ConsoleSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void set_style(bool is_terminal, bool colors) {
    const std::lock_guard lock(mutex_);
    is_terminal_ = is_terminal;
    colors_ = colors;
  }
  /// Sets the status line; "" removes it.
  void set_status(std::string_view text) {
    const std::lock_guard lock(mutex_);
    if (!is_terminal_ || (text.empty() && status_.empty())) return;
    // The cursor stays on the status line, so clearing that line makes room for the next text.
    const std::string before = cleared();
    status_ = text;
    (void)write(before + status_line());
  }
  /// Writes the text unchanged between the lines.
  void print(std::string_view text) {
    const std::lock_guard lock(mutex_);
    (void)write(cleared() + std::string(text) + status_line());
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t text;
    formatter_->format(message, text);
    const bool is_colored = colors_ && message.level >= spdlog::level::warn;
    std::string all = cleared();
    if (is_colored) all += message.level == spdlog::level::warn ? kYellow : kRed;
    all.append(text.data(), text.size());
    if (is_colored) all += kPlain;
    // One write, so that lines of other processes come before or after it.
    if (!write(all + status_line())) throw spdlog::spdlog_ex("stderr cannot be written");
  }
  void flush_() override {}
  std::string cleared() const { return status_.empty() ? "" : kClearLine; }
  std::string status_line() const {
    // One column less: a full line would wrap on some terminals.
    return status_.empty() ? "" : status_.substr(0, num_columns() - 1);
  }

  bool is_terminal_ = false, colors_ = false;
  std::string status_;
};

// Levels of spdlog, by Level.
constexpr std::array kSpdLevels = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                   spdlog::level::err};

spdlog::level::level_enum spd_level(Level level) { return kSpdLevels[static_cast<size_t>(level)]; }

/// Formatter for JSON, one object per line, of a text "[area] message": {"time":
/// "2026-01-31T12:00:00.123Z", "level": "info", "rank": 0, "area": "run", "message": ...}. Invalid
/// UTF-8 is replaced.
class JsonFormatter final : public spdlog::formatter {
 public:
  explicit JsonFormatter(int rank) : rank_(rank) {}
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& text) override {
    // Messages begin with "[area] ", see Error and log::write().
    const std::string_view said(message.payload.data(), message.payload.size());
    const size_t end = said.find("] ");
    const auto level = std::find(kSpdLevels.begin(), kSpdLevels.end(), message.level);
    const nlohmann::ordered_json line{
        {"time", utc_text(message.time)},
        {"level", kLevelNames.at(static_cast<size_t>(level - kSpdLevels.begin()))},
        {"rank", rank_},
        {"area", said.substr(1, end - 1)},
        {"message", said.substr(end + 2)}};
    const std::string json = json_text(line) + "\n";
    text.append(json.data(), json.data() + json.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>(rank_);
  }

 private:
  int rank_;
};

// The logger is replaced as a whole when outputs change. Threads keep the one that they hold until
// their line is written.

using Sink = std::shared_ptr<spdlog::sinks::sink>;

constexpr double kErrorPatience_s = 1;
constexpr size_t kMostEarlyLines = 1000;

using EarlyLines = spdlog::sinks::ringbuffer_sink_mt;

std::shared_ptr<EarlyLines> no_early_lines() {
  return std::make_shared<EarlyLines>(kMostEarlyLines);
}

/// Opens a log file for appending; throws Error(kCannotCreate) with a hint.
Sink open_file(const std::string& path) {
  try {
    return std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
  } catch (const spdlog::spdlog_ex& fault) {
    throw Error(ExitCode::kCannotCreate, "log",
                path + ": " + fault.what() + "; choose a writable run.project_dir");
  }
}

/// Makes a logger with `console` as its first sink.
std::shared_ptr<spdlog::logger> make_logger(const LogOptions& options, const ConsoleOptions& shown,
                                            const std::string& copy, const Sink& console) {
  console->set_level(spd_level(std::max(options.console, shown.level)));
  auto logger = std::make_shared<spdlog::logger>("lockstep", console);
  for (const std::string& file : {options.file, copy}) {
    if (file.empty()) continue;
    const Sink opened = open_file(file);
    logger->sinks().push_back(shown.in_background ? std::make_shared<BackgroundSink>(opened)
                                                  : opened);
  }
  const std::string rank = options.world_size > 1 ? " rank " + std::to_string(options.rank) : "";
  logger->set_level(spdlog::level::debug);
  if (shown.json)
    logger->set_formatter(std::make_unique<JsonFormatter>(options.rank));
  else
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %L" + rank + " %v");
  // Debug lines may wait in the buffer; everything else is written at once.
  logger->flush_on(spdlog::level::info);
  return logger;
}

/// Current logger. Threads of the HTTP server and of a lock's heartbeat log while the main thread
/// replaces it.
class Current {
 public:
  Current() { replace(); }

  std::shared_ptr<spdlog::logger> get() {
    const std::lock_guard lock(mutex_);
    return logger_;
  }
  void set(const ConsoleOptions& shown) {
    background_ = shown.in_background ? std::make_shared<BackgroundSink>(console_) : nullptr;
    console_->set_style(shown.is_terminal, shown.colors);
    shown_ = shown;
    replace();
  }
  void set(const LogOptions& options) {
    options_ = options;
    replace();
  }
  // The copy is independent of the run's own log file.
  void copy_to(const std::string& file) {
    copy_ = file;
    replace();
  }
  void forget_early_lines() {
    early_ = no_early_lines();
    if (options_.file.empty()) replace();
  }
  void status(std::string_view text) {
    on_console([console = console_, text = std::string(text)] { console->set_status(text); }, "");
  }
  void print(std::string_view text) {
    on_console([console = console_, text = std::string(text)] { console->print(text); }, text);
  }

 private:
  /// Runs `write` on the console's thread if there is one. `text` counts as lost if the queue is
  /// full.
  void on_console(std::function<void()> write, std::string_view text) {
    if (background_ == nullptr)
      write();
    else
      background_->do_later(std::move(write), static_cast<int64_t>(text.size()),
                            std::count(text.begin(), text.end(), '\n'));
  }
  void replace() {
    auto made = make_logger(options_, shown_, copy_, background_ ? Sink(background_) : console_);
    // Until the first file is open, lines are kept in memory for it.
    if (options_.file.empty())
      made->sinks().push_back(early_);
    else
      // Sink 0 is the console, sink 1 is the new file.
      hand_over_early_lines(made->sinks()[1].get());
    const std::lock_guard lock(mutex_);
    logger_.swap(made);  // the old logger is destroyed after its last line
  }

  void hand_over_early_lines(spdlog::sinks::sink* file) {
    for (const auto& line : early_->last_raw()) file->log(line);
    early_ = no_early_lines();
  }

  ConsoleOptions shown_;
  LogOptions options_;
  std::shared_ptr<EarlyLines> early_ = no_early_lines();  ///< lines from before the file was open
  std::string copy_;
  const std::shared_ptr<ConsoleSink> console_ = std::make_shared<ConsoleSink>();
  std::shared_ptr<BackgroundSink> background_;  // writes to console_; null: no background thread
  std::mutex mutex_;
  std::shared_ptr<spdlog::logger> logger_;
};

Current& current() {
  static Current instance;
  return instance;
}

/// Counts and writes a line. Only an error waits until it is written.
void write(Level level, std::string_view area, std::string_view message) {
  g_num_lines[static_cast<size_t>(level)].fetch_add(1, std::memory_order_relaxed);
  current().get()->log(spd_level(level), "[{}] {}", area, message);
  if (level == Level::kError) (void)flush(kErrorPatience_s);
}

const ProcessState counts_of_lines("counts of log lines", [] { count_anew(); });

}  // namespace

void configure_console(const ConsoleOptions& options) { current().set(options); }
void configure(const LogOptions& options) { current().set(options); }
void copy_to(const std::string& file) { current().copy_to(file); }
void status(std::string_view text) { current().status(text); }
void print(std::string_view text) { current().print(text); }

void debug(std::string_view area, std::string_view message) { write(Level::kDebug, area, message); }
void info(std::string_view area, std::string_view message) { write(Level::kInfo, area, message); }
void warning(std::string_view area, std::string_view message) {
  write(Level::kWarning, area, message);
}
void error(std::string_view area, std::string_view message) { write(Level::kError, area, message); }

void set_console_level(Level level) {
  current().get()->sinks().front()->set_level(spd_level(level));
}

std::optional<Level> level_named(std::string_view name) {
  for (size_t i = 0; i < kLevelNames.size(); ++i)
    if (kLevelNames[i] == name) return static_cast<Level>(i);
  return std::nullopt;
}

int64_t num_lines(Level level) {
  return g_num_lines[static_cast<size_t>(level)].load(std::memory_order_relaxed);
}

int64_t num_lost() {
  return g_num_lost.load(std::memory_order_relaxed) -
         g_num_lost_before.load(std::memory_order_relaxed);
}

void count_anew() {
  g_num_lost_before.store(g_num_lost.load(std::memory_order_relaxed), std::memory_order_relaxed);
  for (std::atomic<int64_t>& number : g_num_lines) number.store(0, std::memory_order_relaxed);
  current().forget_early_lines();
}

// Sinks without a background thread have written their lines already.
bool flush(double timeout_s) {
  const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1e3));
  bool is_done = true;
  const std::shared_ptr<spdlog::logger> logger = current().get();  // others may replace it
  for (const Sink& sink : logger->sinks())
    if (auto* const background = dynamic_cast<BackgroundSink*>(sink.get()))
      is_done = background->drain(timeout) && is_done;
  return is_done;
}

std::string without_passwords(std::string text) {
  constexpr std::string_view kScheme = "://";
  for (size_t at = text.find(kScheme); at != std::string::npos; at = text.find(kScheme, at)) {
    at += kScheme.size();
    const size_t end = std::min(text.find_first_of("/?# \"\n", at), text.size());
    const size_t host = text.rfind('@', end);
    const size_t colon = text.find(':', at);
    if (host == std::string::npos || host >= end || host < at) continue;
    const size_t secret = colon < host ? colon + 1 : at;  // a user name alone may be a token
    text.replace(secret, host - secret, "***");
  }
  return text;
}

}  // namespace lockstep::log
