#pragma once

#include <string>
#include <vector>

#include "daemon/config/command_result.h"
#include "daemon/serve/job.h"

/// What people do with a queue of jobs, whether a server has it or not. All throw Error:
/// kInputMissing where there is no such queue or job.
namespace lockstep::daemon {

/// The command line of `lockstep submit`.
struct SubmitOptions {
  std::string queue;
  std::string config_file;
  std::vector<std::string> sets;   ///< texts after --set
  std::string estimator;           ///< of --estimator
  std::vector<std::string> flags;  ///< of the estimator, from behind `--`
};

/// Reads the run file that a job has the text of: fills in the run's name, and its project_dir
/// where the command line names one, from this folder on.
void name_run(JobSpec* spec);

/// The job's number, as the command's text. The caller has checked the run file
/// (check_command()). Throws as JobQueue::submit(), too.
CommandResult submit_command(const SubmitOptions& options);

struct ListOptions {
  std::string queue;
  bool all = false;   ///< else the newest 20 of those that have ended
  bool json = false;  ///< for programs
};

/// A line a job, in the order of their numbers.
CommandResult list_command(const ListOptions& options);

struct OfJobOptions {
  std::string queue;
  int64_t id = 0;
  bool follow = false;   ///< of logs: until the job has ended
  double timeout_s = 0;  ///< of wait; 0: none
};

/// The log of rank 0. With `follow` it is printed while it comes.
CommandResult logs_command(const OfJobOptions& options);
/// Throws as JobQueue::cancel().
CommandResult cancel_command(const OfJobOptions& options);
/// Returns when the job has ended, with its exit code; says on stderr where no server runs. Throws
/// Error(kUnavailable) if that takes longer than the limit, kBadData for a job that is set aside.
CommandResult wait_command(const OfJobOptions& options);

}  // namespace lockstep::daemon
