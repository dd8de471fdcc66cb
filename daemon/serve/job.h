#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::daemon {

/// What somebody has asked a server to run, and what the server notes of it. Paths are absolute.
struct JobSpec {
  std::string file;                ///< the run file; what it names may lie beside it
  std::string text;                ///< what the run file said when it was submitted
  std::string folder;              ///< where it was submitted: its relative paths begin here
  std::vector<std::string> sets;   ///< texts after --set
  std::string estimator;           ///< of --estimator; empty: none
  std::vector<std::string> flags;  ///< of the estimator, from behind `--`
  std::string run_name;
  std::string project_dir;  ///< empty: `run` in the job's folder
  std::string submitted;    ///< UTC, for people
  int tries = 0;            ///< starts in a row that brought no new save
  std::string last_save;    ///< the newest one when it was started last; empty: none
};

struct Job {
  int64_t id = 0;
  JobSpec spec;
};

/// Where a job stands; the order in which a queue tells it.
enum class JobState { kQueued, kRunning, kDone, kStopped, kCancelled, kFailed, kSetAside };
inline constexpr int kNumJobStates = 7;
/// "queued", ..., "set_aside".
std::string_view job_state_name(JobState state);

/// How a job ended.
struct JobResult {
  JobState state = JobState::kDone;
  int exit_code = 0;
  std::string message;  ///< why; empty where it is done
  int tries = 1;
  std::string began, ended;  ///< UTC, for people
};

/// As JSON, and back. What parses throws Error(kBadData), which names the file: cut short, of
/// another version, or no job.
std::string text_of(const JobSpec& spec);
JobSpec parse_job(const std::string& file, std::string_view text);
std::string text_of(const JobResult& result, const JobSpec& spec);
JobResult parse_result(const std::string& file, std::string_view text);

}  // namespace lockstep::daemon
