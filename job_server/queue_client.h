#pragma once

#include <string>

#include "daemon/config/program.h"
#include "job_server/job_queue.h"

/// Commands of users on a queue of jobs, with or without a running server. All throw
/// Error(kInputMissing) if there is no such queue or job.
namespace lockstep::job_server {

/// The command line of `lockstep submit`.
struct SubmitOptions {
  std::string queue;
  std::string config_file;
  daemon::AboveFile above = {};
};

/// Reads the run file in the job's text. Fills in the run's name, and its project_dir if the
/// command line sets it; relative ones start at the current folder.
void name_run(JobSpec* spec);

/// Submits a job; the text of the result is its number. The caller has checked the run file
/// (check_command()). Throws also as JobQueue::submit().
daemon::CommandResult submit_command(const SubmitOptions& options);

struct ListOptions {
  std::string queue;
  bool all = false;   ///< false: only the newest 20 of those that have ended
  bool json = false;  ///< for programs
};

/// Lists the jobs, one per line, ordered by number.
daemon::CommandResult list_command(const ListOptions& options);

struct JobCommandOptions {
  std::string queue;
  int64_t id = 0;
  bool follow = false;   ///< for logs: print until the job has ended
  double timeout_s = 0;  ///< for wait; 0: no limit
};

/// Prints the log of rank 0. With `follow`, prints new lines as they are written.
daemon::CommandResult logs_command(const JobCommandOptions& options);
/// Cancels a job. Throws as JobQueue::cancel().
daemon::CommandResult cancel_command(const JobCommandOptions& options);
/// Waits until the job has ended; the exit code is the job's. Reports on stderr if no server runs.
/// Throws Error(kUnavailable) after the time limit, kBadData for a job that is set aside.
daemon::CommandResult wait_command(const JobCommandOptions& options);

}  // namespace lockstep::job_server
