#pragma once

#include <optional>

#include "daemon/run/session.h"
#include "daemon/serve/serve_options.h"

namespace lockstep::daemon {

/// Parsed command line of `lockstepd`.
struct CommandLine {
  SessionOptions session;
  std::optional<ServeOptions> serve;  ///< set: serve jobs instead of running `session`
  bool is_doctor = false;             ///< run the checks of `lockstep doctor` instead
  bool is_standby = false;            ///< first wait for a line on rank 0's standard input
  bool is_quiet = false;
  bool logs_json = false;
  double init_timeout_s = 600;  ///< for MPI to start; 0: no limit
  int exit_code = 0;
  bool done = false;  ///< nothing left to do: help, version or a usage error was printed
};

/// Parses the command line. Prints help, version or the usage error if `speaks` is set. Does not
/// throw.
CommandLine parse_command_line(int argc, char** argv, bool speaks);

}  // namespace lockstep::daemon
