#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files/folder_lock.h"
#include "daemon/config/estimator_flags.h"

/// Queue of jobs in a folder, its jobs, and the check whether it has a server.
namespace lockstep::job_server {

/// Job as submitted by a user, with the server's notes. Paths are absolute.
struct JobSpec {
  std::string file;    ///< the run file; files that it names may be next to it
  std::string text;    ///< content of the run file when it was submitted
  std::string folder;  ///< current folder at submission; relative paths start here
  daemon::AboveFile above = {};
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

/// Queue of jobs in a folder, shared by one server and any number of programs that submit, list and
/// cancel jobs:
///
///   queued/7.json     waits; the lowest number is next
///   running/7.json    is being run; after a kill it is still here and resumes
///   set_aside/7.json  could not be read; kept unchanged
///   jobs/7/           the job's own folder: log, result.json, job.json once it has ended, `run`
///                     (its project_dir) and `cancel`, if a user has cancelled it
///   server.json       the server: host, process, ranks, page (no file: none was started, or it
///                     has ended)
///
/// A job is in one of the first three folders or has ended. It moves by rename, so one of a
/// simultaneous cancel and start comes first. Files are written under a temporary name and renamed
/// once they are on disk.
class JobQueue {
 public:
  static constexpr int64_t kMaxJobBytes = 4 << 20;  ///< of one file in queued
  static constexpr int64_t kMaxQueued = 1000;       ///< unless the server says otherwise

  /// Creates nothing yet.
  explicit JobQueue(const std::filesystem::path& root);

  /// Submits a job and returns its number. Throws Error: kUnavailable if too many jobs wait, kUsage
  /// for a job that is too large, and as base/files does. Called by clients.
  int64_t submit(JobSpec spec) const;
  /// Cancels a job. A waiting job has ended when this returns. The running one saves and stops
  /// after its next step. Throws Error: kUsage if the job has ended, kInputMissing if there is no
  /// such job. Called by clients.
  JobState cancel(int64_t id) const;

  /// Creates the folders, accessible to this user only. Throws Error(kCannotCreate) if others may
  /// write to an existing one. Called by the server and by submitting clients.
  void make() const;
  /// Creates a further folder in the queue, accessible to this user only.
  void make_place(const char* name) const;
  /// Returns the numbers in queued, running, set_aside or jobs, ascending.
  std::vector<int64_t> numbers_in(const char* place) const;
  using MayBegin = std::function<bool(int64_t id)>;
  /// Takes the job in `running`. If there is none, takes the next one in `queued` that may begin
  /// and moves it to `running`. Jobs that are not readable, or belong to another user, are set
  /// aside with a log line.
  std::optional<Job> take(const MayBegin& may_begin = nullptr) const;
  /// Writes the server's notes of a running job.
  void note(const Job& job) const;
  /// Returns the Unix time of the last note(); nullopt for a job that is not running.
  std::optional<double> noted_at_s(int64_t id) const;
  /// Moves a job back to `queued`, where its number makes it the first.
  void put_back(const Job& job) const;
  void end(const Job& job, const JobResult& result) const;

  /// Returns a job's state; nullopt if no job has the number. Any program may call it and the next
  /// ones.
  std::optional<JobState> state(int64_t id) const;
  /// Returns a job's result; nullopt unless it has ended. Throws Error(kBadData) for a damaged
  /// file.
  std::optional<JobResult> result(int64_t id) const;
  bool has_ended(int64_t id) const;
  /// Returns the submitted job; nullopt if it is set aside or does not exist.
  std::optional<JobSpec> spec(int64_t id) const;

  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path folder(int64_t id) const;
  /// Throws Error(kBadData) for a file of a user other than this one, root and the folder's owner.
  void require_own(const std::filesystem::path& file) const;
  std::filesystem::path log(int64_t id) const { return folder(id) / "log"; }
  std::filesystem::path cancel_file(int64_t id) const { return folder(id) / "cancel"; }
  std::filesystem::path server_file() const { return root_ / "server.json"; }
  /// Returns the content of server.json; empty if there is none.
  std::string server_text() const;

 private:
  std::filesystem::path file(const char* place, int64_t id) const;
  std::filesystem::path result_file(int64_t id) const { return folder(id) / "result.json"; }
  void move(const char* from, int64_t id, const std::filesystem::path& to) const;
  std::optional<Job> read_or_set_aside(const char* place, int64_t id) const;
  int64_t make_number() const;
  int64_t max_queued() const;

  std::filesystem::path root_;
};

/// Returns the holder named by the lock of a folder (base/files/folder_lock.h), alive or not.
std::optional<files::LockHolder> holder_of(const std::filesystem::path& folder);

/// Detects whether the process that locked a folder is alive. A process on this host is queried
/// directly. For others the heartbeat is observed from the first call on. Such a process counts as
/// alive until the heartbeat has not changed for kHeartbeatPatience.
class HolderWatch {
 public:
  explicit HolderWatch(std::filesystem::path folder) : folder_(std::move(folder)) {}
  bool lives();

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kHeartbeatPatience{30};

  const std::filesystem::path folder_;
  std::string heartbeat_;  ///< last observed value; moved_at_ is when it changed
  Clock::time_point moved_at_ = Clock::now();
};

/// Detects whether a queue has a server, or a supervisor that starts one.
class ServerWatch {
 public:
  explicit ServerWatch(const JobQueue& queue)
      : server_(queue.root()), supervisor_(queue.root() / "supervisor") {}
  bool has_server() { return server_.lives() || supervisor_.lives(); }

 private:
  HolderWatch server_, supervisor_;
};

}  // namespace lockstep::job_server
