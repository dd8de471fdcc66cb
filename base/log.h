#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// One line per event on stderr: time, level, rank, area, message. Any thread may log.
namespace lockstep::log {

enum class Level { kDebug, kInfo, kWarning, kError };

struct LogOptions {
  Level console = Level::kInfo;  ///< lowest level that reaches stderr
  int rank = 0;                  ///< stands in each line once the world has more than one rank
  int world_size = 1;
  std::string file;  ///< also written here, appended; empty: no file
};

/// May be called again when rank and folder are known, also while other threads log: each line
/// goes to the old places or to the new ones. A file begins with the lines of before it was open,
/// the last 1000 of them.
/// Throws Error(kCannotCreate) if the file cannot be opened.
void configure(const LogOptions& options);

/// Every line goes into this file too from now on, whatever configure() says; empty: into none.
/// Throws as configure().
void copy_to(const std::string& file);

void debug(std::string_view area, std::string_view message);
void info(std::string_view area, std::string_view message);
void warning(std::string_view area, std::string_view message);
void error(std::string_view area, std::string_view message);

/// The lowest level that reaches stderr from now on, as LogOptions::console.
void set_console_level(Level level);
/// debug, info, warning or error; nothing for other words.
std::optional<Level> level_named(std::string_view name);

/// Lines logged so far at this level by this process, or since count_anew(), printed or not.
int64_t num_lines(Level level);
/// Lines that were lost since then because stderr was not read, or a disk was full or hung.
int64_t num_lost();
/// For a process that runs one job after another: the next file begins with lines from here on.
void count_anew();

/// Waits until every line so far is written, `timeout_s` at most for each place; false if one is
/// not. Before a process ends without its destructors (end_process() does it).
bool flush(double timeout_s);

/// For what others may read: https://user:secret@host/x becomes https://user:***@host/x, anywhere
/// in a text; other texts are as they were.
std::string without_passwords(std::string text);

}  // namespace lockstep::log
