#pragma once

#include <optional>

#include "daemon/run/session.h"
#include "daemon/serve/serve_options.h"

namespace lockstep::daemon {

/// What a command line of `lockstepd` asks for.
struct CommandLine {
  SessionOptions session;
  std::optional<ServeOptions> serve;  ///< instead of that session
  bool is_doctor = false;             ///< the same
  bool is_standby = false;            ///< first wait for a word on rank 0's input
  bool is_quiet = false;
  bool logs_json = false;
  double init_timeout_s = 600;  ///< for MPI to start; 0: no limit
  int exit_code = 0;
  bool done = false;  ///< nothing to run: help, version or a usage error was printed
};

/// Prints help, version or what is wrong, where `speaks`. Throws nothing.
CommandLine parse_command_line(int argc, char** argv, bool speaks);

}  // namespace lockstep::daemon
