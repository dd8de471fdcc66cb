#pragma once

#include <string>

namespace lockstep {

/// A word as a shell reads it back, quoted where that is needed.
std::string shell_quoted(const std::string& word);

struct ShellResult {
  std::string text;     ///< what was written to stdout
  int exit_code = 127;  ///< as of a shell; 127: it could not be started, or was ended by a signal
};

/// Runs a command of /bin/sh, without standard input, and waits for its end.
ShellResult run_in_shell(const std::string& command);

}  // namespace lockstep
