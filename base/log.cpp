#include "base/log.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>

#include "base/console.h"
#include "base/console/console_sink.h"
#include "base/error.h"

namespace lockstep::log {
namespace {

std::array<std::atomic<int64_t>, 4> g_num_lines{};

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

std::shared_ptr<spdlog::sinks::basic_file_sink_mt> open_file(const std::string& path) {
  try {
    return std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
  } catch (const spdlog::spdlog_ex& fault) {
    throw Error(ExitCode::kCannotCreate, "log",
                path + ": " + fault.what() + "; choose a writable run.project_dir");
  }
}

std::shared_ptr<spdlog::logger> make_logger(const LogOptions& options, const ConsoleOptions& shown,
                                            const std::string& copy,
                                            std::shared_ptr<ConsoleSink> console) {
  console->set_level(spd_level(std::max(options.console, shown.level)));
  auto logger = std::make_shared<spdlog::logger>("lockstep", console);
  for (const std::string& file : {options.file, copy})
    if (!file.empty()) logger->sinks().push_back(open_file(file));
  const std::string rank = options.world_size > 1 ? " rank " + std::to_string(options.rank) : "";
  logger->set_level(spdlog::level::debug);
  if (shown.json)
    logger->set_formatter(std::make_unique<JsonFormatter>(options.rank));
  else
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %L" + rank + " %v");
  logger->flush_on(spdlog::level::info);
  return logger;
}

/// The logger in use. Threads of the HTTP server and of a lock's heartbeat log while the main
/// thread changes it.
class Current {
 public:
  Current() : logger_(make_logger({}, {}, "", console_)) {}

  std::shared_ptr<spdlog::logger> get() {
    const std::lock_guard lock(mutex_);
    return logger_;
  }
  void set(const ConsoleOptions& shown) {
    console_->set_style(shown.is_terminal, shown.colors);
    shown_ = shown;
    replace();
  }
  void set(const LogOptions& options) {
    options_ = options;
    replace();
  }
  void copy_to(const std::string& file) {
    copy_ = file;
    replace();
  }
  void status(std::string_view text) { console_->set_status(text); }

 private:
  void replace() {
    auto made = make_logger(options_, shown_, copy_, console_);
    const std::lock_guard lock(mutex_);
    logger_.swap(made);  // the old one ends with the last line that is written to it
  }

  ConsoleOptions shown_;
  LogOptions options_;
  std::string copy_;
  const std::shared_ptr<ConsoleSink> console_ = std::make_shared<ConsoleSink>();
  std::mutex mutex_;
  std::shared_ptr<spdlog::logger> logger_;
};

Current& current() {
  static Current instance;
  return instance;
}

void write(Level level, std::string_view area, std::string_view message) {
  g_num_lines[static_cast<size_t>(level)].fetch_add(1, std::memory_order_relaxed);
  current().get()->log(spd_level(level), "[{}] {}", area, message);
}

}  // namespace

void configure_console(const ConsoleOptions& options) { current().set(options); }
void configure(const LogOptions& options) { current().set(options); }
void copy_to(const std::string& file) { current().copy_to(file); }
void status(std::string_view text) { current().status(text); }

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

void count_anew() {
  for (std::atomic<int64_t>& number : g_num_lines) number.store(0, std::memory_order_relaxed);
}

}  // namespace lockstep::log
