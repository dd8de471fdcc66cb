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
  /// the code, or what a rank has written where the others only lost it, is worth no other try.
  /// False where it may be, and where they ran none: the server itself was refused, or another one
  /// has the queue.
  bool note(int exit_code);

 private:
  const JobQueue& queue_;
  std::string last_start_;  ///< of a job, as it was before the ranks that end next
  double since_s_;          ///< Unix time of the last end
};

/// For a server that takes a job which an earlier one was running when it ended: what one of its
/// ranks has left since that start, if no other try would do otherwise.
std::optional<Failure> told_by_last_try(const JobQueue& queue, const Job& job);

}  // namespace lockstep::daemon
