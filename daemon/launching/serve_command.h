#pragma once

#include "daemon/config/command_result.h"
#include "daemon/launching/supervised_ranks.h"
#include "daemon/serve/serve_options.h"

namespace lockstep::daemon {

/// The command line of `lockstep serve`.
struct ServeCommandOptions : RanksOptions {
  ServeOptions server;
};

/// Keeps a server of jobs running: starts its ranks with mpirun, and again after a job has lost
/// ranks (launch/supervise/supervisor.h). A job that has ended or has a new checkpoint counts as
/// progress. A job that fails on one rank alone has failed; the ranks restart with the next one.
CommandResult serve_command(const ServeCommandOptions& options);

}  // namespace lockstep::daemon
