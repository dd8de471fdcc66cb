#include "job_server/failed_job.h"

#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/exit_class.h"
#include "base/files/folder_lock.h"
#include "base/files/project.h"
#include "base/log.h"

namespace lockstep::job_server {
namespace {

std::optional<Job> running_job(const JobQueue& queue) {
  for (const int64_t id : queue.numbers_in("running"))
    if (!queue.has_ended(id))
      if (std::optional<JobSpec> spec = queue.spec(id)) return Job{id, std::move(*spec)};
  return std::nullopt;
}

/// Returns a text that identifies a start of a job. Each start has another number of tries or
/// another checkpoint.
std::string start_of(const std::optional<Job>& job) {
  return job ? fmt::format("{} {}", job->id, text_of(job->spec)) : "";
}

double unix_time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Returns the failure that one of the job's ranks has written since then.
std::optional<daemon::Failure> told_since(double since_s, const Job& job) {
  // cause_of() wants a failure to explain: the latest possible loss of a peer.
  const daemon::Failure lost{.rank = -1,
                             .exit_code = static_cast<int>(ExitCode::kUnavailable),
                             .message = "",
                             .unix_time_s = 1e300};
  std::optional<daemon::Failure> cause =
      daemon::cause_of(Project(job.spec.project_dir).logs(), lost);
  return cause && cause->unix_time_s >= since_s ? cause : std::nullopt;
}

/// Returns the file name in "[area] rank 0: PATH: no such file"; empty if there is none.
std::string missing_file_in(const std::string& message) {
  std::string_view text = message;
  if (const size_t area = text.find("] "); area != std::string_view::npos)
    text.remove_prefix(area + 2);
  if (text.starts_with("rank ")) text.remove_prefix(std::min(text.size(), text.find(": ") + 2));
  const size_t end = text.find_first_of(":,");
  if (end == std::string_view::npos) return "";
  return std::filesystem::path(text.substr(0, end)).filename().string();
}

}  // namespace

FailedJob::FailedJob(const JobQueue& queue)
    : queue_(queue), last_start_(start_of(running_job(queue))), since_s_(unix_time_s()) {}

bool FailedJob::note(int exit_code) {
  const std::optional<Job> job = running_job(queue_);
  const std::string start = start_of(job);
  // Both values are for the next call; they must change even if this one returns early.
  const std::string last_start = std::exchange(last_start_, start);
  const double since_s = std::exchange(since_s_, unix_time_s());
  // An unchanged start means that the ranks ran no job. A living holder means that another server
  // has the queue.
  if (!job || start == last_start || HolderWatch(queue_.root()).lives()) return false;
  const std::optional<daemon::Failure> told = told_since(since_s, *job);
  // If the others only lost a rank, that rank's own error is the cause.
  const bool is_lost = exit_class(exit_code) == ExitClass::kTransient;
  const int code = told && is_lost ? told->exit_code : exit_code;
  const std::string message =
      told ? told->message : fmt::format("its ranks ended with {}", exit_code);
  if (is_of_host(static_cast<ExitCode>(code), message, job->spec)) {
    // A fault of the host is not the job's, so it does not use up a try.
    Job sound = *job;
    if (code != code_of(ExitCode::kDisagree)) --sound.spec.tries;
    queue_.put_back(sound);
    return false;
  }
  if (exit_class(code) != ExitClass::kJob) return false;
  log::error("serve", fmt::format("job {} has failed ({}): {}", job->id, code, message));
  queue_.end(*job, {.state = JobState::kFailed,
                    .exit_code = code,
                    .message = message,
                    .tries = job->spec.tries,
                    .began = "",
                    .ended = files::utc_now()});
  return true;
}

std::optional<daemon::Failure> told_by_last_try(const JobQueue& queue, const Job& job) {
  // Without a counted try there is no failed start to look at.
  const std::optional<double> since_s = queue.noted_at_s(job.id);
  if (!since_s || job.spec.tries == 0) return std::nullopt;
  std::optional<daemon::Failure> told = told_since(*since_s, job);
  return told && exit_class(told->exit_code) != ExitClass::kTransient ? told : std::nullopt;
}

// A missing file is the user's if the job names it; otherwise a mount of the host is missing.
bool is_of_host(ExitCode code, const std::string& message, const JobSpec& spec) {
  if (code != ExitCode::kInputMissing) return exit_class(code) == ExitClass::kHost;
  const std::string name = missing_file_in(message);
  const auto names = [&](const std::string& text) { return text.find(name) != std::string::npos; };
  return !(name.empty() || names(spec.text) || names(spec.file) || names(spec.above.estimator) ||
           std::any_of(spec.above.sets.begin(), spec.above.sets.end(), names) ||
           std::any_of(spec.above.flags.begin(), spec.above.flags.end(), names));
}

}  // namespace lockstep::job_server
