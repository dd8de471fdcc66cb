#include "daemon/serve/failed_job.h"

#include <chrono>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/lock_holder.h"
#include "base/files/project.h"
#include "base/log.h"
#include "daemon/serve/server_watch.h"
#include "launch/supervise/restarts.h"

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

double unix_time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// What one of the job's ranks has said of its end since then.
std::optional<Failure> told_since(double since_s, const Job& job) {
  const Failure lost{.rank = -1,
                     .exit_code = static_cast<int>(ExitCode::kUnavailable),
                     .message = "",
                     .unix_time_s = 1e300};
  std::optional<Failure> cause = cause_of(Project(job.spec.project_dir).logs(), lost);
  return cause && cause->unix_time_s >= since_s ? cause : std::nullopt;
}

}  // namespace

FailedJob::FailedJob(const JobQueue& queue)
    : queue_(queue), last_start_(start_of(running_job(queue))), since_s_(unix_time_s()) {}

bool FailedJob::note(int exit_code) {
  const std::optional<Job> job = running_job(queue_);
  const std::string start = start_of(job);
  const std::string last_start = std::exchange(last_start_, start);
  const double since_s = std::exchange(since_s_, unix_time_s());
  if (!job || start == last_start || HolderWatch(queue_.root()).lives()) return false;
  const std::optional<Failure> told = told_since(since_s, *job);
  const int code = told && launch::is_worth_another_try(exit_code) ? told->exit_code : exit_code;
  if (launch::is_worth_another_try(code)) return false;
  const std::string message =
      told ? told->message : fmt::format("its ranks ended with {}", exit_code);
  log::error("serve", fmt::format("job {} has failed ({}): {}", job->id, code, message));
  queue_.end(*job, {.state = JobState::kFailed,
                    .exit_code = code,
                    .message = message,
                    .tries = job->spec.tries,
                    .began = "",
                    .ended = files::utc_now()});
  return true;
}

std::optional<Failure> told_by_last_try(const JobQueue& queue, const Job& job) {
  const std::optional<double> since_s = queue.noted_at_s(job.id);
  if (!since_s || job.spec.tries == 0) return std::nullopt;
  std::optional<Failure> told = told_since(*since_s, job);
  return told && !launch::is_worth_another_try(told->exit_code) ? told : std::nullopt;
}

}  // namespace lockstep::daemon
