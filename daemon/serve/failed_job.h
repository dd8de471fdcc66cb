#pragma once

#include <optional>
#include <string>

#include "daemon/serve/job_queue.h"
#include "daemon/watch/failure.h"

namespace lockstep::daemon {

/// For whoever starts the server of a queue and has seen it end: what a job did that no other try
/// would do otherwise, as a bug or data of one rank's share, ends that job, not the queue.
class FailedJob {
 public:
  /// Before the first start.
  explicit FailedJob(const JobQueue& queue);

  /// After each end of the ranks, with their code: notes that the job which they ran has failed, if
  /// the code, or what a rank has written where the others only lost it, is the job's fault. A
  /// fault of the host puts the job back. False where the server is not to be started again for it,
  /// and where the ranks ran no job: the server itself was refused, or another one has the queue.
  bool note(int exit_code);

 private:
  const JobQueue& queue_;
  std::string last_start_;  ///< of a job, as it was before the ranks that end next
  double since_s_;          ///< Unix time of the last end
};

/// For a server that takes a job which an earlier one was running when it ended: what one of its
/// ranks has left since that start, unless that is worth another try.
std::optional<Failure> told_by_last_try(const JobQueue& queue, const Job& job);

/// Whether a job ended by a fault of the host, so that it must keep its place in the queue. A
/// missing file is the host's where the job's own text does not name it.
bool is_of_host(ExitCode code, const std::string& message, const JobSpec& spec);

}  // namespace lockstep::daemon
