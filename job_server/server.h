#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "base/error.h"
#include "base/stop_request.h"
#include "daemon/run/session.h"
#include "dist/communicator.h"
#include "dist/process_info.h"
#include "job_server/job_queue.h"
#include "job_server/serve_options.h"

/// Server of a queue of jobs, and the run of one job in it.
namespace lockstep::job_server {

/// Environment of the server on this rank; all of it outlives the server.
struct ServerParts {
  dist::Communicator& control;
  const dist::ProcessInfo& process;
  StopRequest& signals;
  /// Calls run_session() with these options; the StopRequest can stop it.
  std::function<ExitCode(const daemon::SessionOptions&, StopRequest&)> run;
  /// Checks a submitted job and fills in the name of its run. Throws if something is wrong with the
  /// job. Called in a single-threaded child process.
  std::function<void(JobSpec*)> check;
  /// Ends all ranks with this exit code and does not return. Any thread.
  std::function<void(int)> abort;
};

/// Result of a job, the same on all ranks.
struct JobOutcome {
  ExitCode code = ExitCode::kDone;
  std::string message;        ///< of an error
  bool is_signalled = false;  ///< a signal to some rank requested the end
  bool is_cancelled = false;  ///< the job's file `cancel` requested the end

  /// True if peers may be lost or hold other values: no further job may run on these ranks.
  bool leaves_ranks_unclear() const;
};

/// Runs one job as in a process of its own: counters of log lines and signals, recent spans, cores
/// and the working folder are reset. `folder`: the job's folder on rank 0, which also writes the
/// log and looks for the file `cancel`; empty on the other ranks. Collective. Throws an Error that
/// is one rank's alone.
JobOutcome serve_job(const Job& job, const ServerParts& parts, const std::filesystem::path& folder);

/// Runs the jobs of a queue, one after another, until a stop is requested. Rank 0 alone reads the
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

}  // namespace lockstep::job_server
