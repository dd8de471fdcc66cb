#pragma once

#include <string_view>

#include "base/log.h"

namespace lockstep::log {

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
