#pragma once

#include <string>

namespace lockstep::daemon {

/// Result of a command of the tool: its text for stdout and the exit code of the process.
struct CommandResult {
  std::string text;
  int exit_code = 0;
};

}  // namespace lockstep::daemon
