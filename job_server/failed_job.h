#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "daemon/control/failure.h"
#include "job_server/job_queue.h"

/// Causes of failed jobs: errors that would occur again, and faults of the host.
namespace lockstep::job_server {

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
std::optional<daemon::Failure> told_by_last_try(const JobQueue& queue, const Job& job);

/// True if a fault of the host ended a job, so that it must keep its place in the queue. A missing
/// file counts as the host's fault if the job's own text does not name it.
bool is_of_host(ExitCode code, const std::string& message, const JobSpec& spec);

/// Records faults of the host that a server's jobs met (a full disk, a missing mount). Decides
/// which jobs may start nevertheless.
///
/// After one fault, other jobs of the queue may start. If they run, the job itself is the problem.
/// After faults of two jobs in a row all jobs wait: 30 s, then twice as long each time, at most 10
/// minutes.
class HostFaults {
 public:
  using Clock = std::chrono::steady_clock;

  /// Records that a job met a fault of the host and was put back. Returns true if this counts as
  /// one of its tries: another job has ended here since this job's last fault.
  bool note_fault(int64_t job, Clock::time_point now) {
    const auto before = ran_since_.find(job);
    const bool counts = before != ran_since_.end() && before->second;
    ran_since_[job] = false;
    held_until_ = now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
                            std::min(kLongest_s, kShortest_s * std::exp2(num_in_a_row_))));
    ++num_in_a_row_;
    return counts;
  }

  /// Records that a job ran to its end, with any result.
  void note_end(int64_t job) {
    ran_since_.erase(job);
    for (auto& [other, ran] : ran_since_) ran = true;
    num_in_a_row_ = 0;
  }

  bool may_begin(int64_t job, Clock::time_point now) const {
    if (num_in_a_row_ == 0 || now >= held_until_) return true;
    const auto met = ran_since_.find(job);
    return num_in_a_row_ == 1 && (met == ran_since_.end() || met->second);
  }

 private:
  static constexpr double kShortest_s = 30, kLongest_s = 600;

  /// True for each job with a fault if another job has ended since.
  std::map<int64_t, bool> ran_since_;
  int num_in_a_row_ = 0;
  Clock::time_point held_until_;
};

}  // namespace lockstep::job_server
