#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::daemon {

/// Job as submitted by a user, with the server's notes. Paths are absolute.
struct JobSpec {
  std::string file;                ///< the run file; files that it names may be next to it
  std::string text;                ///< content of the run file when it was submitted
  std::string folder;              ///< current folder at submission; relative paths start here
  std::vector<std::string> sets;   ///< texts after --set
  std::string estimator;           ///< of --estimator; empty: none
  std::vector<std::string> flags;  ///< flags of the estimator, from after `--`
  std::string run_name;
  std::string project_dir;  ///< empty: `run` in the job's folder
  std::string submitted;    ///< UTC, for people
  int tries = 0;            ///< consecutive starts without a new checkpoint
  std::string last_save;    ///< newest checkpoint at the last start; empty: none
};

struct Job {
  int64_t id = 0;
  JobSpec spec;
};

/// State of a job, in the order of `lockstep ps`.
enum class JobState { kQueued, kRunning, kDone, kStopped, kCancelled, kFailed, kSetAside };
inline constexpr int kNumJobStates = 7;
/// Returns "queued", ..., "set_aside".
std::string_view job_state_name(JobState state);

/// Result of a job that has ended.
struct JobResult {
  JobState state = JobState::kDone;
  int exit_code = 0;
  std::string message;  ///< reason; empty if done
  int tries = 1;
  std::string began, ended;  ///< UTC, for people
};

/// Convert to JSON and back. Parsing throws Error(kBadData), which names the file, if the text is
/// truncated, of another version, or not a job.
std::string text_of(const JobSpec& spec);
JobSpec parse_job(const std::string& file, std::string_view text);
std::string text_of(const JobResult& result, const JobSpec& spec);
JobResult parse_result(const std::string& file, std::string_view text);

}  // namespace lockstep::daemon
