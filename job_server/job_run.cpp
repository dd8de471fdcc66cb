#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include "base/files/files.h"
#include "base/log.h"
#include "base/process.h"
#include "base/stop_request.h"
#include "base/threads.h"
#include "daemon/config/estimator_flags.h"
#include "daemon/config/run_config.h"
#include "dist/communicator.h"
#include "job_server/job_queue.h"
#include "job_server/queue_client.h"
#include "job_server/server.h"
#include "job_server/submit_desk.h"
#include "metrics/samples.h"

// Run of one job on all ranks, requests to it, and the submission of a job.
namespace lockstep::job_server {

namespace {

constexpr std::chrono::milliseconds kLookEvery{20};

/// Search for a job's file `cancel` by a separate thread, since the disk may hang. The thread
/// shares ownership.
struct CancelLook {
  explicit CancelLook(std::filesystem::path file) : cancel_file(std::move(file)) {}

  void run() {
    std::unique_lock lock(mutex);
    while (!is_over) {
      is_looking = true;
      // No lock during the disk access, so that the destructor never waits for it.
      lock.unlock();
      const bool is_there = files::exists(cancel_file);
      lock.lock();
      is_looking = false;
      if (is_there) is_cancelled = true;
      if (is_there) return;
      wake.wait_for(lock, kLookEvery, [this] { return is_over; });
    }
  }

  const std::filesystem::path cancel_file;
  std::atomic<bool> is_cancelled{false};
  std::mutex mutex;
  std::condition_variable wake;
  bool is_over = false, is_looking = false;  // guarded by mutex
};

/// Stop requests to one job of a server. These are the signals that came after it began and, on the
/// rank that has the job's file `cancel`, that file. Any thread.
class JobRequests final : public StopRequest {
 public:
  /// An empty `cancel_file`: this rank does not look for the file. A separate thread looks every 20
  /// ms, so callers never wait for the disk. `signals` must outlive the object.
  JobRequests(StopRequest& signals, const std::filesystem::path& cancel_file)
      : signals_(signals),
        look_(std::make_shared<CancelLook>(cancel_file)),
        saves_before_(signals.num_saves_asked()) {
    if (!cancel_file.empty()) {
      const SignalsBlocked inherited_by_the_thread;
      thread_ = std::thread([look = look_] { look->run(); });
    }
    for (const int signal_number : kCountedSignals)
      received_before_[signal_number] = signals.num_received(signal_number);
  }
  /// Restores the usual meaning of signals, which the job's preemption.signals may have changed.
  ~JobRequests() override {
    // The server itself stops at SIGUSR1 only.
    signals_.set_stop_signals({SIGUSR1});
    if (!thread_.joinable()) return;
    std::unique_lock lock(look_->mutex);
    look_->is_over = true;
    look_->wake.notify_all();
    const bool may_hang = look_->is_looking;
    lock.unlock();
    may_hang ? thread_.detach() : thread_.join();
  }

  bool is_cancelled() const { return look_->is_cancelled; }

  void set_stop_signals(const std::vector<int>& signals) override {
    signals_.set_stop_signals(signals);
  }
  bool stop_asked() const override { return signals_.stop_asked() || is_cancelled(); }
  bool end_asked() const override { return signals_.end_asked(); }
  int64_t num_saves_asked() const override {
    // Only requests since the job began. The count reads as 0 while SIGUSR2 means stop.
    return std::max<int64_t>(0, signals_.num_saves_asked() - saves_before_);
  }
  int64_t num_received(int signal_number) const override {
    return signals_.num_received(signal_number) - received_before_.at(signal_number);
  }

 private:
  StopRequest& signals_;
  const std::shared_ptr<CancelLook> look_;
  const int64_t saves_before_;
  std::map<int, int64_t> received_before_;  ///< by signal
  std::thread thread_;
};

// Submission is separate from queue_client.cpp, whose commands read no run file and thus need no
// LibTorch.

}  // namespace

void name_run(JobSpec* spec) {
  const daemon::RunConfig config =
      daemon::require_run_config(spec->file, daemon::overrides_of(spec->above), spec->text);
  spec->run_name = config.run.name;
  const auto names_folder = [](const std::string& set) {
    return set.starts_with("run.project_dir=");
  };
  if (std::ranges::any_of(spec->above.sets, names_folder))
    spec->project_dir = std::filesystem::absolute(config.run.project_dir).string();
}

daemon::CommandResult submit_command(const SubmitOptions& options) {
  JobSpec spec = spec_of(options);
  name_run(&spec);
  return {fmt::format("{}\n", JobQueue(options.queue).submit(std::move(spec))), 0};
}

static daemon::SessionOptions session_of(const JobSpec& spec) {
  daemon::SessionOptions session;
  session.config_file = spec.file;
  session.config_text = spec.text;
  session.overrides = daemon::overrides_of(spec.above);
  session.overrides.push_back({.path = "run.project_dir",
                               .value = daemon::quoted_text(spec.project_dir),
                               .origin = "the job's folder"});
  return session;
}

/// Begins one job in this process, whose process-wide state is reset (ProcessState).
static void begin_as_new_process(const Job& job, const std::filesystem::path& folder) {
  daemon::begin_job();
  // As a supervisor would set it, for the series lockstep_restarts.
  (void)::setenv("LOCKSTEP_RESTART_COUNT", std::to_string(job.spec.tries - 1).c_str(), 1);
  // For goodput.csv; the process began long before.
  (void)::setenv("LOCKSTEP_STARTED_AT", fmt::format("{:.3f}", metrics::unix_time_s()).c_str(), 1);
  (void)::unsetenv("LOCKSTEP_QUEUED_AT");
  (void)::unsetenv("LOCKSTEP_LAST_EXIT_CODE");  // of the server
  std::tm submitted{};
  if (::strptime(job.spec.submitted.c_str(), "%Y-%m-%d %H:%M:%S", &submitted) != nullptr)
    (void)::setenv("LOCKSTEP_QUEUED_AT", std::to_string(::timegm(&submitted)).c_str(), 1);
  if (folder.empty()) return;
  log::copy_to((folder / "log").string());
  log::info("serve", fmt::format("job {} starts, try {}: {} in {}", job.id, job.spec.tries,
                                 job.spec.run_name, job.spec.project_dir));
}

static ExitCode run(const Job& job, const ServerParts& parts, StopRequest& requests) {
  // The job's folder may be missing on one host alone.
  const auto there = dist::on_all_ranks(
      parts.control, [&] { return std::make_unique<ScopedWorkingFolder>(job.spec.folder); });
  const daemon::SessionOptions session =
      dist::on_all_ranks(parts.control, [&] { return session_of(job.spec); });
  return parts.run(session, requests);
}

bool JobOutcome::leaves_ranks_unclear() const {
  return code == ExitCode::kUnavailable || code == ExitCode::kDisagree ||
         code == ExitCode::kWatchdog;
}

JobOutcome serve_job(const Job& job, const ServerParts& parts,
                     const std::filesystem::path& folder) {
  // The thread gets its cores back when the job has ended.
  const auto restore =
      c10::make_scope_exit([cpus = cpus_of(allowed_cores())] { (void)bind_this_thread(cpus); });
  begin_as_new_process(job, folder);
  JobRequests requests(parts.signals, folder.empty() ? "" : folder / "cancel");
  JobOutcome outcome;
  try {
    outcome.code = run(job, parts, requests);
  } catch (const Error& error) {
    if (!error.on_every_rank()) throw;
    if (!folder.empty()) log::error("lockstepd", error.what());
    outcome = {.code = error.code(), .message = error.what()};
  }
  // Peers may be lost: no collective is possible any more.
  if (outcome.leaves_ranks_unclear()) return outcome;
  const bool is_cancelled = requests.is_cancelled();
  // Any rank may have received the signal, so the ranks agree.
  outcome.is_signalled =
      dist::any_of(parts.control, (requests.stop_asked() && !is_cancelled) || requests.end_asked());
  outcome.is_cancelled = dist::any_of(parts.control, is_cancelled);
  return outcome;
}

}  // namespace lockstep::job_server
