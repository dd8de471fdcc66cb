#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <sys/types.h>

#include "daemon/serve/job_queue.h"
#include "daemon/serve/queue_client.h"

namespace lockstep::daemon {

/// A server that waits for jobs has what a check of a run file needs in memory, and loading it
/// takes most of the time of `lockstep submit`. So that leaves the job in the queue's folder
/// `submitted`, where the server's desk checks it, puts it into the queue and answers:
///
///   submitted/n1-812.json    the job, until the desk takes it or the client takes it back
///   submitted/n1-812.taken   it is being checked
///   submitted/n1-812.answer  its number, or exit code and message of what is wrong, or that the
///                            client must check it itself
///
/// A check runs in a child of the server (fork): it may hang at a dead mount or crash, and changes
/// the working folder, flags and tables of its process. The server itself goes on meanwhile.
class SubmitDesk {
 public:
  static constexpr double kCheckLimit_s = 30;

  /// `check` throws what is wrong with a job, and names its run in it. It is called in a child
  /// process of one thread, in the folder where the job was submitted. `queue` and `check` must
  /// outlive it.
  SubmitDesk(const JobQueue& queue, std::function<void(JobSpec*)> check,
             double check_limit_s = kCheckLimit_s);
  /// Ends the check under way: its client is told that the server ended.
  ~SubmitDesk();
  SubmitDesk(const SubmitDesk&) = delete;
  SubmitDesk& operator=(const SubmitDesk&) = delete;

  /// Begins with the next job, where none is being checked. While no job runs.
  void look();
  bool is_busy() const { return is_busy_; }

 private:
  void serve(const std::filesystem::path& taken);
  /// Its exit code; nothing: it did not come to its end.
  std::optional<int> run_in_child(const std::filesystem::path& taken,
                                  const std::filesystem::path& checked);

  const JobQueue& queue_;
  const std::function<void(JobSpec*)> check_;
  const double check_limit_s_;
  std::atomic<bool> is_busy_{false}, is_ending_{false};
  std::vector<pid_t> abandoned_;  ///< children that hung; of thread_ alone
  std::thread thread_;
};

/// What `options` say, with the run file's text; what it says of itself is empty.
JobSpec spec_of(const SubmitOptions& options);

/// Whether reading the run file may load code: an estimator, a plug-in, TorchScript, Python. Such a
/// job is checked by its client, never by a server.
bool brings_code(const JobSpec& spec);

/// As submit_command(), by a server's desk; what is wrong goes to stderr. Nothing where no server
/// waits for jobs or checks this one within a while, and for jobs that bring code of their own:
/// check and submit it here then. Throws Error(kUnavailable) where the server ended meanwhile, or
/// gives no answer.
std::optional<CommandResult> submit_at_desk(const SubmitOptions& options);

}  // namespace lockstep::daemon
