#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "daemon/serve/job_queue.h"
#include "daemon/serve/queue_client.h"

namespace lockstep::daemon {

/// A server that waits for jobs has what a check of a run file needs in memory, and loading it
/// takes most of the time of `lockstep submit`. So that leaves the job in the queue's folder
/// `submitted`, where the server's desk checks it, puts it into the queue and answers:
///
///   submitted/n1-812.json    the job, until the desk takes it or the client takes it back
///   submitted/n1-812.taken   it is being checked
///   submitted/n1-812.answer  its number, or exit code and message of what is wrong
class SubmitDesk {
 public:
  /// `check` throws what is wrong with a job, and names its run in it. It is called on a thread of
  /// the desk, in the folder where the job was submitted.
  SubmitDesk(const JobQueue& queue, std::function<void(JobSpec*)> check);
  ~SubmitDesk();  // waits for the check under way
  SubmitDesk(const SubmitDesk&) = delete;
  SubmitDesk& operator=(const SubmitDesk&) = delete;

  /// Begins with the next job, where none is being checked. While no job runs: a check changes the
  /// working folder and reads flags, as a run does.
  void look();
  bool is_busy() const { return is_busy_; }

 private:
  void serve(const std::filesystem::path& taken) const;

  const JobQueue& queue_;
  const std::function<void(JobSpec*)> check_;
  std::atomic<bool> is_busy_{false};
  std::thread thread_;
};

/// What `options` say, with the run file's text; what it says of itself is empty.
JobSpec spec_of(const SubmitOptions& options);

/// As submit_command(), by a server's desk; what is wrong goes to stderr. Nothing where no server
/// waits for jobs or takes this one at once, and for jobs that bring code of their own: check and
/// submit it here then. Throws Error(kUnavailable) where the server ended meanwhile.
std::optional<CommandResult> submit_at_desk(const SubmitOptions& options);

}  // namespace lockstep::daemon
