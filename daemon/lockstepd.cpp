#include "daemon/lockstepd.h"

#include <cstdio>
#include <cstdlib>
#include <optional>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/console.h"
#include "base/error.h"
#include "base/log.h"
#include "daemon/commands.h"
#include "daemon/config/estimator_flags.h"
#include "daemon/device/threading.h"
#include "daemon/doctor/links.h"
#include "daemon/launching/standby.h"
#include "daemon/lockstepd_line.h"
#include "daemon/run/session.h"
#include "daemon/run/signals.h"
#include "daemon/serve/queue_client.h"
#include "daemon/serve/server.h"
#include "dist/mpi/world.h"
#include "dist/process_info.h"
#include "estimator/open_plugin.h"
#include "metrics/progress.h"

// The program lockstepd, one process per rank: start of MPI, one session or a server of jobs, end.
// Errors that all ranks share end it normally; any other error aborts the world.
namespace lockstep::daemon {
namespace {

/// Facts that are known only before MPI runs: afterwards a single process looks like a launched
/// one.
struct BeforeMpi {
  dist::ProcessInfo promised;  ///< as far as the launcher provides it
  bool is_interactive = metrics::is_interactive(::isatty(STDERR_FILENO) == 1, std::getenv);
  bool wants_colors = is_interactive && metrics::wants_colors(std::getenv);
};

BeforeMpi look_around() {
  BeforeMpi facts;
  try {
    facts.promised = dist::read_process_info();
  } catch (const Error&) {
    // Unusual variables of a launcher: MPI reports the fault.
  }
  return facts;
}

/// Longest end of MPI after all ranks have reached it. They may still be closing their files.
constexpr double kLongestEnd_s = 300;

bool has_bar(const CommandLine& line, const BeforeMpi& before) {
  return before.is_interactive && !line.is_quiet && !line.logs_json;
}

/// Returns an error for an unexpected exception.
Error bug(const std::exception& fault) {
  std::string text = fault.what();
  for (const estimator::Plugin* plugin : estimator::opened_plugins())
    text += fmt::format(" (it may be a bug of the plug-in {})", plugin->path);
  return {ExitCode::kBug, "bug", text};
}

/// Ends this rank with an error. Rank 0 logs an error that all ranks share.
int end_with(const Error& error, const dist::ProcessInfo& process, dist::mpi::World& world) {
  if (!error.on_every_rank() || process.rank == 0) log::error("lockstepd", error.what());
  // abort() does not return: the other ranks may wait for this one inside a collective.
  if (!error.on_every_rank()) world.abort(static_cast<int>(error.code()));
  return static_cast<int>(error.code());
}

/// Runs `lockstepd doctor` and returns its exit code.
int examine(dist::Communicator& control, const dist::ProcessInfo& process) {
  const std::vector<Finding> found =
      world_findings(control, process, dist::mpi::World::library_version());
  if (process.rank == 0) std::fputs(text_of(found).c_str(), stdout);
  return exit_code_of(found);
}

/// Checks a submitted job in a child process, which has none of this process' threads.
void check_job(JobSpec* job) {
  at::set_num_threads(1);
  check_before_queue(job->file, overrides_of(job->sets, job->estimator, job->flags));
  name_run(job);
}

int run(const CommandLine& line, const BeforeMpi& before, const train::StepHook& on_step,
        const checkpoint::SavePhaseHook& at_save_phase) {
  // Before MPI starts: signals must not meet its or the default handling.
  Signals signals;
  dist::mpi::World world({.hang_s = line.init_timeout_s});
  const dist::ProcessInfo process = world.process_info();
  log::configure({.rank = process.rank, .world_size = process.world_size});
  try {
    // A launcher without MPI support starts several single processes; detect that before they
    // collide.
    dist::require_promised_ranks(before.promised, process.world_size);
    dist::warn_of_idle_tasks(before.promised);
    const std::unique_ptr<dist::Communicator> control = world.make_communicator();
    const auto session = [&](const SessionOptions& options, train::StopRequest& stop) {
      return run_session(
          options, {.control = *control,
                    .process = process,
                    .mpi_version = world.library_version(),
                    .make_cpu_communicator =
                        [&](const dist::SyncOptions& sync) {
                          return world.make_communicator({.shared_window = sync.shared_window,
                                                          .timeout_s = sync.timeout_s,
                                                          .slow_after_s = sync.slow_after_s,
                                                          .hosts_N = {}});
                        },
                    .make_notice = [&] { return world.make_notice(); },
                    .stop = stop,
                    .is_interactive = has_bar(line, before),
                    .on_step = on_step,
                    .at_save_phase = at_save_phase,
                    .abort = [&](const Error& error) { (void)end_with(error, process, world); }});
    };
    if (line.is_standby) {
      read_ahead(line.session.config_file, line.session.overrides);
      if (!stand_by(*control, signals)) return static_cast<int>(ExitCode::kStopped);
    }
    if (line.is_doctor) return examine(*control, process);
    // Windows created after this point belong to a job's run; the server frees them.
    const size_t own_windows = world.num_windows();
    const ExitCode code =
        line.serve ? serve(*line.serve, {.control = *control,
                                         .process = process,
                                         .signals = signals,
                                         .run = session,
                                         .check = check_job,
                                         .tidy = [&] { world.free_windows_from(own_windows); },
                                         .abort = [&](int exit_code) { world.abort(exit_code); }})
                   : session(line.session, signals);
    world.limit_end(kLongestEnd_s);
    return static_cast<int>(code);
  } catch (const Error& error) {
    return end_with(error, process, world);
  } catch (const std::exception& error) {
    return end_with(bug(error), process, world);
  }
}

}  // namespace

int lockstepd_main(int argc, char** argv, const train::StepHook& on_step,
                   const checkpoint::SavePhaseHook& at_save_phase) {
  keep_freed_memory();
  const BeforeMpi before = look_around();
  const CommandLine line = parse_command_line(argc, argv, before.promised.rank == 0);
  if (line.done) return line.exit_code;
  log::configure_console({.level = line.is_quiet ? log::Level::kWarning : log::Level::kInfo,
                          .json = line.logs_json,
                          .is_terminal = has_bar(line, before),
                          .colors = before.wants_colors && !line.logs_json,
                          .in_background = true});
  try {
    return run(line, before, on_step, at_save_phase);
  } catch (const Error& error) {  // MPI itself could not start
    log::error("lockstepd", error.what());
    return static_cast<int>(error.code());
  }
}

}  // namespace lockstep::daemon
