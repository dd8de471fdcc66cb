#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <sys/types.h>

#include "base/error.h"
#include "job_server/job_queue.h"
#include "job_server/queue_client.h"

/// Submission of jobs through a running server.
namespace lockstep::job_server {

/// Scope in which relative paths of this process start at another folder, the one where a job was
/// submitted. Throws Error(kInputMissing) if the folder does not exist.
class ScopedWorkingFolder {
 public:
  explicit ScopedWorkingFolder(const std::string& folder) {
    std::error_code fault;
    before_ = std::filesystem::current_path(fault);
    std::filesystem::current_path(folder, fault);
    if (fault)
      throw Error(ExitCode::kInputMissing, "serve",
                  fmt::format("{}, where the job was submitted: {}; the folder must be there for "
                              "all ranks",
                              folder, fault.message()));
  }
  ~ScopedWorkingFolder() {
    std::error_code ignored;
    std::filesystem::current_path(before_, ignored);
  }
  ScopedWorkingFolder(const ScopedWorkingFolder&) = delete;
  ScopedWorkingFolder& operator=(const ScopedWorkingFolder&) = delete;

 private:
  std::filesystem::path before_;
};

/// Checks and queues submitted jobs inside the server. A waiting server has everything in memory
/// that a check of a run file needs. Loading it would take most of the time of `lockstep submit`.
/// So `lockstep submit` leaves the job in the queue's folder `submitted`, where the server's desk
/// checks it, puts it into the queue and answers:
///
///   submitted/n1-812.json    the job, until the desk takes it or the client takes it back
///   submitted/n1-812.taken   the job while it is checked
///   submitted/n1-812.answer  its number; or exit code and message of its fault; or a request that
///                            the client checks it itself
///
/// A check runs in a child of the server (fork). It may hang at a dead mount or crash, and it
/// changes the working folder, flags and tables of its process. The server itself continues
/// meanwhile.
class SubmitDesk {
 public:
  static constexpr double kCheckLimit_s = 30;

  /// `check` throws if something is wrong with a job, and fills in the name of its run. It is
  /// called in a single-threaded child process, in the folder where the job was submitted. `queue`
  /// and `check` must outlive the object.
  SubmitDesk(const JobQueue& queue, std::function<void(JobSpec*)> check,
             double check_limit_s = kCheckLimit_s);
  /// Aborts the check in progress. Its client gets the answer that the server ended.
  ~SubmitDesk();

  /// Starts checking the next job if none is being checked. Call it only while no job runs.
  void look();
  bool is_busy() const { return is_busy_; }

 private:
  void serve(const std::filesystem::path& taken);
  /// Returns the child's exit code; nullopt if it did not finish.
  std::optional<int> run_in_child(const std::filesystem::path& taken,
                                  const std::filesystem::path& checked);

  const JobQueue& queue_;
  const std::function<void(JobSpec*)> check_;
  const double check_limit_s_;
  std::atomic<bool> is_busy_{false}, is_ending_{false};
  std::vector<pid_t> abandoned_;  ///< children that hung; used by thread_ only
  std::thread thread_;
};

/// Returns the job of `options` with the run file's text. Fields that depend on the text remain
/// empty.
JobSpec spec_of(const SubmitOptions& options);

/// Submits a job through the server's desk, like submit_command(). Writes faults to stderr. Returns
/// nullopt if no server waits for jobs or the desk does not check this one in time. Also returns
/// nullopt for a job with its own code. Then check and submit it here. Throws Error(kUnavailable)
/// if the server ended meanwhile or gives no answer.
std::optional<daemon::CommandResult> submit_at_desk(const SubmitOptions& options);

}  // namespace lockstep::job_server
