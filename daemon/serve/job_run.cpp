#include "daemon/serve/job_run.h"

#include <cstdlib>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "base/log.h"
#include "base/process/cores.h"
#include "daemon/config/estimator_flags.h"
#include "daemon/config/run_sections.h"
#include "daemon/serve/in_folder.h"
#include "daemon/serve/job_requests.h"
#include "dist/agree.h"

namespace lockstep::daemon {
namespace {

SessionOptions session_of(const JobSpec& spec) {
  SessionOptions session;
  session.config_file = spec.file;
  session.config_text = spec.text;
  session.overrides = overrides_of(spec.sets, spec.estimator, spec.flags);
  session.overrides.push_back({.path = "run.project_dir",
                               .value = quoted_text(spec.project_dir),
                               .origin = "the job's folder"});
  return session;
}

/// Scope of one job in this process. Process-wide state is reset (ProcessState). The thread gets
/// its cores back when the job has ended.
class OwnProcess {
 public:
  OwnProcess(const Job& job, const std::filesystem::path& folder)
      : cpus_(cpus_of(allowed_cores())) {
    begin_job();
    // As a supervisor would set it, for the series lockstep_restarts.
    (void)::setenv("LOCKSTEP_RESTART_COUNT", std::to_string(job.spec.tries - 1).c_str(), 1);
    if (folder.empty()) return;
    log::copy_to((folder / "log").string());
    log::info("serve", fmt::format("job {} begins, try {}: {} in {}", job.id, job.spec.tries,
                                   job.spec.run_name, job.spec.project_dir));
  }
  ~OwnProcess() { (void)bind_this_thread(cpus_); }
  OwnProcess(const OwnProcess&) = delete;
  OwnProcess& operator=(const OwnProcess&) = delete;

 private:
  const std::vector<int> cpus_;
};

ExitCode run(const Job& job, const ServerParts& parts, train::StopRequest& requests) {
  // The job's folder may be missing on one host alone.
  const auto there = dist::on_all_ranks(
      parts.control, [&] { return std::make_unique<InFolder>(job.spec.folder); });
  const SessionOptions session =
      dist::on_all_ranks(parts.control, [&] { return session_of(job.spec); });
  return parts.run(session, requests);
}

}  // namespace

bool JobOutcome::leaves_ranks_unclear() const {
  return code == ExitCode::kUnavailable || code == ExitCode::kDisagree ||
         code == ExitCode::kWatchdog;
}

JobOutcome serve_job(const Job& job, const ServerParts& parts,
                     const std::filesystem::path& folder) {
  const OwnProcess own(job, folder);
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
  parts.tidy();
  const bool is_cancelled = requests.is_cancelled();
  // Any rank may have received the signal, so the ranks agree.
  outcome.is_signalled =
      dist::any_of(parts.control, (requests.stop_asked() && !is_cancelled) || requests.end_asked());
  outcome.is_cancelled = dist::any_of(parts.control, is_cancelled);
  return outcome;
}

}  // namespace lockstep::daemon
