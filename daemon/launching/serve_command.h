#pragma once

#include "daemon/config/command_result.h"
#include "daemon/launching/supervised_ranks.h"
#include "daemon/serve/server.h"

namespace lockstep::daemon {

/// The command line of `lockstep serve`.
struct ServeCommandOptions : RanksOptions {
  ServeOptions server;
};

/// Keeps a server of jobs up: starts its ranks with mpirun, and again where a job has lost some
/// (launch/supervise/supervisor.h). A job that has ended, or has a new save, is progress.
CommandResult serve_command(const ServeCommandOptions& options);

}  // namespace lockstep::daemon
