#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "base/error.h"
#include "daemon/run/session.h"
#include "daemon/serve/job.h"
#include "dist/communicator.h"
#include "dist/process_info.h"
#include "train/step/stop_request.h"

namespace lockstep::daemon {

/// What the server stands on; all of it outlives the server.
struct ServerParts {
  dist::Communicator& control;
  const dist::ProcessInfo& process;
  train::StopRequest& signals;
  /// run_session() with these options, told to stop by that.
  std::function<ExitCode(const SessionOptions&, train::StopRequest&)> run;
  /// Throws what is wrong with a job that is submitted, and names its run in it. Called in a child
  /// process of one thread.
  std::function<void(JobSpec*)> check;
  /// Frees what a run that has ended on all ranks leaves in the world. Collective.
  std::function<void()> tidy;
  /// Ends all ranks with this exit code and does not return. Any thread.
  std::function<void(int)> abort;
};

/// What came of a job, the same on all ranks.
struct JobOutcome {
  ExitCode code = ExitCode::kDone;
  std::string message;        ///< of an error
  bool is_signalled = false;  ///< a signal to some rank has asked for the end
  bool is_cancelled = false;  ///< the job's file `cancel` has

  /// Peers may be lost, or hold other values: no job may run on them.
  bool leaves_ranks_unclear() const;
};

/// Runs one job as a process of its own would: counts of log lines and signals, recent spans, cores
/// and the working folder begin anew. `folder` is the job's on rank 0, which also logs into it and
/// looks for its file `cancel`; empty on the others. Collective. Throws Error of one rank alone.
JobOutcome serve_job(const Job& job, const ServerParts& parts, const std::filesystem::path& folder);

}  // namespace lockstep::daemon
