#pragma once

#include "base/error.h"
#include "daemon/serve/job_run.h"
#include "daemon/serve/serve_options.h"

namespace lockstep::daemon {

/// Runs the jobs of a queue, one after another, until it is told to stop. Rank 0 alone looks at
/// the queue; it tells the others what begins. Collective.
///
///   kStopped  a signal: the running job has saved and waits as the first one of the queue
///   kDone     no job waits any more (until_empty)
///   kIo, ...  jobs wait, and all of them for the host to be mended (until_empty)
///   others    the running job left the ranks in an unclear state (kUnavailable, kDisagree,
///             kWatchdog): start the server again. That job goes on then, unless it has had its
///             tries.
///
/// Throws Error on every rank: kCannotCreate if another server has the queue, and for what is
/// wrong with `options`. An error of one rank alone is thrown there: abort the world.
ExitCode serve(const ServeOptions& options, const ServerParts& parts);

}  // namespace lockstep::daemon
