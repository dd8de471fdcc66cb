#include "base/log.h"

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

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

std::shared_ptr<spdlog::logger> make_logger(const LogOptions& options) {
  auto console = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  console->set_level(spd_level(options.console));
  auto logger = std::make_shared<spdlog::logger>("lockstep", console);
  if (!options.file.empty()) {
    try {
      logger->sinks().push_back(std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file));
    } catch (const spdlog::spdlog_ex& fault) {
      throw Error(ExitCode::kCannotCreate, "log",
                  options.file + ": " + fault.what() + "; choose a writable run.project_dir");
    }
  }
  const std::string rank = options.world_size > 1 ? " rank " + std::to_string(options.rank) : "";
  logger->set_level(spdlog::level::debug);
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %L" + rank + " %v");
  logger->flush_on(spdlog::level::info);
  return logger;
}

/// The logger in use. Threads of the HTTP server and of a lock's heartbeat log while the main
/// thread changes it.
class Current {
 public:
  std::shared_ptr<spdlog::logger> get() {
    const std::lock_guard lock(mutex_);
    return logger_;
  }
  void set(std::shared_ptr<spdlog::logger> logger) {
    const std::lock_guard lock(mutex_);
    logger_.swap(logger);  // the old one ends with the last line that is written to it
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<spdlog::logger> logger_ = make_logger({});
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

void configure(const LogOptions& options) { current().set(make_logger(options)); }

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

}  // namespace lockstep::log
