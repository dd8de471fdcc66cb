#pragma once

#include "base/error.h"
#include "daemon/serve/job_run.h"
#include "daemon/serve/serve_options.h"

namespace lockstep::daemon {

/// Runs the jobs of a queue, one after another, until it is told to stop. Rank 0 alone reads the
/// queue and broadcasts the next job. Collective. Exit codes:
///
///   kStopped  a signal: the running job has saved and is now the first one of the queue
///   kDone     no job waits any more (until_empty)
///   kIo, ...  all waiting jobs need a repair of the host (until_empty)
///   others    the running job left the ranks in an unclear state (kUnavailable, kDisagree,
///             kWatchdog). Restart the server; that job then resumes, unless it has used up its
///             tries.
///
/// Throws Error on every rank: kCannotCreate if another server has the queue, and for faults of
/// `options`. An error of one rank alone is thrown there: abort the world.
ExitCode serve(const ServeOptions& options, const ServerParts& parts);

}  // namespace lockstep::daemon
