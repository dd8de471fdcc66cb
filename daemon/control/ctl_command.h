#pragma once

#include <string>

#include "daemon/config/command_result.h"

namespace lockstep::daemon {

/// The command line of `lockstep ctl`.
struct CtlOptions {
  std::string where;  ///< the run file, its folder, http://127.0.0.1:9464, unix:PATH
  std::string
      token_file;       ///< of a run with metrics.token_file; a run file in `where` names its own
  std::string ca_file;  ///< of a run with TLS: who signed its certificate; empty: the system's
  std::string verb;     ///< status, save, stop, drain, pause, resume, set
  std::string change;   ///< of set: KEY=VALUE
  double timeout_s = 300;  ///< of drain: until the run has ended
};

/// Calls the control API of a running job and prints what it answers. `drain` asks it to save and
/// stop, and waits until it has ended. Throws Error: kUsage for what the API refuses, kInputMissing
/// where no job runs, kUnavailable where it does not answer.
CommandResult ctl_command(const CtlOptions& options);

}  // namespace lockstep::daemon
