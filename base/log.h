#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// Log: one line per event on stderr with time, level, rank, area, message. Thread-safe.
namespace lockstep::log {

enum class Level { kDebug, kInfo, kWarning, kError };

struct LogOptions {
  Level console = Level::kInfo;  ///< lowest level that goes to stderr
  int rank = 0;                  ///< written in each line if there are several ranks
  int world_size = 1;
  std::string file;  ///< additional file, appended to; empty: none
};

/// Sets the outputs. It may be called again when rank and folder are known, also while other
/// threads log. Each line then goes to the old outputs or to the new ones. A file begins with the
/// last 1000 lines from before it was open. Throws Error(kCannotCreate) if the file cannot be
/// opened.
void configure(const LogOptions& options);

/// Copies every line from now on into this file too, independent of configure(); empty: stops that.
/// Throws as configure().
void copy_to(const std::string& file);

void debug(std::string_view area, std::string_view message);
void info(std::string_view area, std::string_view message);
void warning(std::string_view area, std::string_view message);
void error(std::string_view area, std::string_view message);

/// Sets the lowest level that goes to stderr from now on, as LogOptions::console.
void set_console_level(Level level);
/// Parses debug, info, warning or error; nullopt for other words.
std::optional<Level> level_named(std::string_view name);

/// Returns the number of lines logged at this level, since the start or count_anew(), printed or
/// not.
int64_t num_lines(Level level);
/// Returns the number of lines lost since then because stderr was not read, or a disk was full or
/// hung.
int64_t num_lost();
/// Resets the counts, for a process that runs several jobs. The next file begins with lines from
/// here on.
void count_anew();

/// Waits until every line so far is written, at most `timeout_s` seconds per output; false if one
/// is not. Call it before a process ends without its destructors (end_process() does).
bool flush(double timeout_s);

/// Hides passwords in a text that others may read: https://user:secret@host/x becomes
/// https://user:***@host/x. Other texts are unchanged.
std::string without_passwords(std::string text);

}  // namespace lockstep::log
