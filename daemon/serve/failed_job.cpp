#include "daemon/serve/failed_job.h"

#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/project.h"
#include "base/log.h"
#include "daemon/serve/server_watch.h"
#include "daemon/watch/failure.h"

namespace lockstep::daemon {
namespace {

std::optional<Job> running_job(const JobQueue& queue) {
  for (const int64_t id : queue.numbers_in("running"))
    if (!queue.has_ended(id))
      if (std::optional<JobSpec> spec = queue.spec(id)) return Job{id, std::move(*spec)};
  return std::nullopt;
}

/// Which start of a job it is: each notes another number of tries, or another save.
std::string start_of(const std::optional<Job>& job) {
  return job ? fmt::format("{} {}", job->id, text_of(job->spec)) : "";
}

std::string why(const Job& job, int exit_code) {
  const Failure unknown{.rank = -1,
                        .exit_code = static_cast<int>(ExitCode::kUnavailable),
                        .message = fmt::format("its ranks ended with {}", exit_code),
                        .unix_time_s = 1e300};
  return cause_of(Project(job.spec.project_dir).logs(), unknown).value_or(unknown).message;
}

}  // namespace

FailedJob::FailedJob(const JobQueue& queue)
    : queue_(queue), last_start_(start_of(running_job(queue))) {}

bool FailedJob::note(int exit_code) {
  const std::optional<Job> job = running_job(queue_);
  std::string start = start_of(job);
  if (!job || start == last_start_ || HolderWatch(queue_.root()).lives()) return false;
  last_start_ = std::move(start);
  const std::string message = why(*job, exit_code);
  log::error("serve", fmt::format("job {} has failed ({}): {}", job->id, exit_code, message));
  queue_.end(*job, {.state = JobState::kFailed,
                    .exit_code = exit_code,
                    .message = message,
                    .tries = job->spec.tries,
                    .began = "",
                    .ended = files::utc_now()});
  return true;
}

}  // namespace lockstep::daemon
