// The logger is replaced as a whole when outputs change. Threads keep the one that they hold until
// their line is written.
#include "base/log.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/ringbuffer_sink.h>
#include <spdlog/spdlog.h>

#include "base/console.h"
#include "base/console/background_sink.h"
#include "base/console/console_sink.h"
#include "base/error.h"
#include "base/process_state.h"

namespace lockstep::log {
namespace {

// Counters of lines by level, for metrics and the summary.
std::array<std::atomic<int64_t>, 4> g_num_lines{};
std::atomic<int64_t> g_num_lost_before{0};  // value at count_anew()

/// Converts a level to spdlog's.
spdlog::level::level_enum spd_level(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

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
      (void)background_->do_later(std::move(write), static_cast<int64_t>(text.size()),
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
  constexpr std::array<std::pair<std::string_view, Level>, 4> kNames{{{"debug", Level::kDebug},
                                                                      {"info", Level::kInfo},
                                                                      {"warning", Level::kWarning},
                                                                      {"error", Level::kError}}};
  for (const auto& [word, level] : kNames)
    if (word == name) return level;
  return std::nullopt;
}

int64_t num_lines(Level level) {
  return g_num_lines[static_cast<size_t>(level)].load(std::memory_order_relaxed);
}

int64_t num_lost() {
  return num_lost_in_background() - g_num_lost_before.load(std::memory_order_relaxed);
}

namespace {
const ProcessState counts_of_lines("counts of log lines", [] { count_anew(); });
}  // namespace

void count_anew() {
  g_num_lost_before.store(num_lost_in_background(), std::memory_order_relaxed);
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
