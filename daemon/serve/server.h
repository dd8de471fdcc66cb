#pragma once

#include <string>

#include "base/error.h"
#include "daemon/serve/job_queue.h"
#include "daemon/serve/job_run.h"

namespace lockstep::daemon {

/// The command line of `lockstepd serve`.
struct ServeOptions {
  std::string queue;                      ///< folder of the jobs; empty: not asked for
  std::string listen = "127.0.0.1:9463";  ///< of rank 0's page; "off": none
  std::string token_file;                 ///< of that page
  int64_t max_queued = JobQueue::kMaxQueued;
  int max_tries = 3;         ///< of a job, in a row without a new save
  bool until_empty = false;  ///< ends where no job waits
};

/// Runs the jobs of a queue, one after another, until it is told to stop. Rank 0 alone looks at
/// the queue; it tells the others what begins. Collective.
///
///   kStopped  a signal: the running job has saved and waits as the first one of the queue
///   kDone     no job waits any more (until_empty)
///   others    the running job left the ranks in an unclear state (kUnavailable, kDisagree,
///             kWatchdog): start the server again. That job goes on then, unless it has had its
///             tries.
///
/// Throws Error on every rank: kCannotCreate if another server has the queue, and for what is
/// wrong with `options`. An error of one rank alone is thrown there: abort the world.
ExitCode serve(const ServeOptions& options, const ServerParts& parts);

}  // namespace lockstep::daemon
