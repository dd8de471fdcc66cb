#pragma once

#include <string>

namespace lockstep::daemon {

/// Result of a command of the tool: what it says on stdout, and the process' exit code.
struct CommandResult {
  std::string text;
  int exit_code = 0;
};

}  // namespace lockstep::daemon
