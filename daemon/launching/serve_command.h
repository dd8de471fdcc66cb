#pragma once

#include "daemon/config/command_result.h"
#include "daemon/launching/supervised_ranks.h"
#include "daemon/serve/serve_options.h"

namespace lockstep::daemon {

/// The command line of `lockstep serve`.
struct ServeCommandOptions : RanksOptions {
  ServeOptions server;
};

/// Keeps a server of jobs up: starts its ranks with mpirun, and again where a job has lost some
/// (launch/supervise/supervisor.h). A job that has ended, or has a new save, is progress. One
/// that fails on one rank alone has failed, and the ranks begin again with the next one.
CommandResult serve_command(const ServeCommandOptions& options);

}  // namespace lockstep::daemon
