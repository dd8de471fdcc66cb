#pragma once

#include <string_view>

#include "base/log.h"

namespace lockstep::log {

/// How the lines of the log are written; of the whole process, from the start on.
struct ConsoleOptions {
  Level level = Level::kInfo;  ///< lowest level that reaches stderr
  bool json = false;           ///< an object a line, in the file too
  bool is_terminal = false;    ///< shows status()
  bool colors = false;         ///< warnings yellow, errors red
  /// Lines are written by threads of their own, one for stderr and one for each file: who logs
  /// waits for nobody, and where stderr is not read or a disk hangs, lines are lost (num_lost()).
  /// An error is waited for, a second at most. For programs that end with end_process().
  bool in_background = false;
};

/// To be called before threads log. Stays as it is when configure() is called.
void configure_console(const ConsoleOptions& options);

/// A line that stands below all others on a terminal until the next one takes its place; "" takes
/// it away. Cut at the terminal's width. Nothing where ConsoleOptions::is_terminal is false. Any
/// thread.
void status(std::string_view text);

/// Writes this text on stderr as it is, after all lines so far. With ConsoleOptions::in_background
/// it is lost where the queue is full, and its lines are counted.
void print(std::string_view text);

}  // namespace lockstep::log
