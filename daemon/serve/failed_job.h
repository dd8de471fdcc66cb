#pragma once

#include <optional>
#include <string>

#include "daemon/serve/job_queue.h"
#include "daemon/watch/failure.h"

namespace lockstep::daemon {

/// Detects jobs that would fail in any other try too (a bug, bad data of one rank's shard). Such an
/// error ends the job, not the queue. Used by the supervisor of a server.
class FailedJob {
 public:
  /// Create it before the first start of the ranks.
  explicit FailedJob(const JobQueue& queue);

  /// Call it after each end of the ranks, with their exit code. Marks the job that they ran as
  /// failed if the code is the job's fault. A failure file of one rank counts too if the other
  /// ranks only lost that rank. A fault of the host puts the job back into the queue.
  ///
  /// Returns false if the server must not be restarted because of this job. Returns false too if
  /// the ranks ran no job: the server itself was refused, or another server has the queue.
  bool note(int exit_code);

 private:
  const JobQueue& queue_;
  std::string last_start_;  ///< of the job whose ranks end next: its state before this start
  double since_s_;          ///< Unix time of the last end
};

/// Returns the failure that a rank left in the job's last start, unless it is worth another try.
/// For a server that takes a job which was running when an earlier server ended.
std::optional<Failure> told_by_last_try(const JobQueue& queue, const Job& job);

/// True if a fault of the host ended a job, so that it must keep its place in the queue. A missing
/// file counts as the host's fault if the job's own text does not name it.
bool is_of_host(ExitCode code, const std::string& message, const JobSpec& spec);

}  // namespace lockstep::daemon
