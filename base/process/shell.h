#pragma once

#include <string>

namespace lockstep {

/// Returns a word in the form for a shell, quoted if necessary.
std::string shell_quoted(const std::string& word);

struct ShellResult {
  std::string text;     ///< output on stdout
  int exit_code = 127;  ///< as of a shell; 127: it could not be started, or a signal ended it
};

/// Runs a command with /bin/sh, without standard input, and waits for its end.
ShellResult run_in_shell(const std::string& command);

}  // namespace lockstep
