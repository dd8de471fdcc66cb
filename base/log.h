#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// Log: one line per event on stderr with time, level, rank, area, message. Thread-safe.
namespace lockstep::log {

enum class Level { kDebug, kInfo, kWarning, kError };
inline constexpr std::array<std::string_view, 4> kLevelNames = {"debug", "info", "warning",
                                                                "error"};

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

/// Form of log lines, for the entire process from its start.
struct ConsoleOptions {
  Level level = Level::kInfo;  ///< lowest level that goes to stderr
  bool json = false;           ///< one JSON object per line, also in the file
  bool is_terminal = false;    ///< status() is shown
  bool colors = false;         ///< warnings yellow, errors red
  /// Writes lines on separate threads, one for stderr and one per file. So a thread that logs never
  /// waits. If stderr is not read or a disk hangs, lines are lost (num_lost()). Only an error waits
  /// until it is written, for at most a second. For programs that end with end_process().
  bool in_background = false;
};

/// Sets the form. Call it before threads log. configure() does not change it.
void configure_console(const ConsoleOptions& options);

/// Shows a status line below all others on a terminal, until the next one replaces it; "" removes
/// it. It is cut at the terminal's width. Does nothing if ConsoleOptions::is_terminal is false.
/// Thread-safe.
void status(std::string_view text);

/// Writes this text to stderr unchanged, after all lines so far. With ConsoleOptions::in_background
/// it is lost if the queue is full; its lines then count as lost.
void print(std::string_view text);

}  // namespace lockstep::log
