#include "daemon/lockstepd.h"

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/exit_class.h"
#include "base/log.h"
#include "daemon/config/estimator_flags.h"
#include "daemon/config/number_range.h"
#include "daemon/config/preset.h"
#include "daemon/config/program.h"
#include "daemon/control/signals.h"
#include "daemon/run/check.h"
#include "daemon/run/device.h"
#include "daemon/run/doctor.h"
#include "daemon/run/run_start.h"
#include "daemon/run/session.h"
#include "daemon/train_estimator.h"
#include "dist/mpi/world.h"
#include "dist/nccl/load_nccl.h"
#include "dist/process_info.h"
#include "estimator/open_plugin.h"
#include "job_server/queue_client.h"
#include "job_server/serve_options.h"
#include "job_server/server.h"
#include "metrics/progress.h"
#include "python/interpreter.h"

namespace lockstep::daemon {

// Every rank parses the same command line. Only one rank prints messages, or each would appear many
// times.

namespace {

/// Parsed command line of `lockstepd`.
struct CommandLine {
  SessionOptions session;
  std::optional<job_server::ServeOptions> serve;  ///< set: serve jobs instead of running `session`
  bool is_doctor = false;                         ///< run the checks of `lockstep doctor` instead
  bool is_quiet = false;
  bool logs_json = false;
  double init_timeout_s = 600;  ///< for MPI to start; 0: no limit
  int num_spares = 0;           ///< of the processes, the last ones
  /// Set if nothing is left to do: help, version or a usage error was printed.
  std::optional<ExitCode> end = {};
};

constexpr const char* kExamples = R"(Examples:
  mpirun -n 2 lockstepd --config configs/digits.yaml
  mpirun -n 2 lockstepd --config configs/digits.yaml --set run.name=fast --set optimizer.learning_rate=0.05
  lockstepd --config run.yaml --resume never
  mpirun -n 2 lockstepd serve --queue jobs
  mpirun -n 2 lockstepd doctor
  mpirun -n 2 lockstepd --config run.yaml --estimator=build/libmoons.so -- --width 64
  mpirun -n 2 lockstepd --model resnet18 --train_metadata 'data/train*' --eval_metadata 'data/eval*'
    --model_dir models --batch_size 64 --train_steps 10000

Signals: SIGUSR1 saves at the next step and stops (exit 75: run the same command again to continue);
         SIGUSR2 saves and continues; SIGTERM, SIGINT and SIGHUP save and stop if
         preemption.grace_seconds leaves the time, else stop at the last commit; a second SIGINT
         ends at once; preemption.signals lists others that act like SIGUSR1
         (mpirun itself returns 1 after a SIGTERM to it; SIGUSR1 to mpirun returns 75).
Exit codes: 0 done, 64 usage, 65 bad data or checkpoint, 66 input missing, 69 peer lost,
            73 cannot write or folder in use, 74 I/O, 75 stopped: run again, 76 ranks disagree,
            78 run file, 79 a rank hangs, 80 not finite.)";

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// Returns the version, or why there is none.
std::string text_or_none(std::string (*version)()) {
  try {
    return version();
  } catch (const Error& fault) {
    return fmt::format("none: {}", fault.what());
  }
}

CLI::App* add_serve(CLI::App* app, job_server::ServeOptions* options) {
  CLI::App* sub =
      app->add_subcommand("serve", "run the jobs of a queue (lockstep submit) one after another");
  sub->fallthrough();
  job_server::add_server_options(sub, options);
  sub->footer(
      "Example:\n  mpirun -n 2 lockstepd serve --queue jobs\n"
      "lockstep serve does the same, and restarts lost ranks.");
  return sub;
}

CLI::App* add_doctor(CLI::App* app) {
  CLI::App* sub = app->add_subcommand(
      "doctor", "measure the links between these ranks, and check the resources of each");
  sub->footer("Example:\n  mpirun -n 2 lockstepd doctor\nlockstep doctor also checks the host.");
  return sub;
}

/// Adds options about the start of the ranks and about their output.
void add_start_options(CLI::App* app, CommandLine* line) {
  app->add_option("--init-timeout", line->init_timeout_s,
                  "seconds for MPI to start on all ranks, before a rank gives up (79); 0: no limit")
      ->check(number(0, 1e9))
      ->capture_default_str();
  app->add_option("--spares", line->num_spares,
                  "number of the started processes that wait, and take the places of lost ranks; "
                  "mpirun needs --mca orte_abort_on_non_zero_status 0, and after a loss does not "
                  "return the run's code: the last line on stderr and lockstep run --spare do")
      ->check(number(0, 65536))
      ->capture_default_str();
  app->add_flag("--quiet", line->is_quiet,
                "only warnings and errors on stderr; log files are complete");
  app->add_flag("--json-logs", line->logs_json, "log lines are JSON objects");
}

/// Throws Error(kUsage) if options contradict each other.
void require_fitting(const CommandLine& line) {
  if (line.num_spares > 0 && (line.serve || line.is_doctor))
    throw Error(ExitCode::kUsage, "usage", "--spares is for a single run");
  // A server takes its runs from the queue, and the doctor trains nothing.
  if ((line.serve || line.is_doctor) &&
      (!line.session.config_file.empty() || !line.session.overrides.empty()))
    throw Error(ExitCode::kUsage, "usage",
                "serve and doctor accept no run and no keys: use lockstep submit");
}

/// Parses the command line. Prints help, version or the usage error if `speaks` is set. Does not
/// throw.
CommandLine parse_command_line(int argc, char** argv, bool speaks) {
  CommandLine line;
  std::string model;
  // The estimator's flags come after `--`; remove them before CLI11 parses the rest.
  AboveFile above{.flags = take_flags(&argc, argv)};
  CLI::App app{"Lockstep: data-parallel training, one rank", "lockstepd"};
  app.footer(kExamples);
  app.add_option("--config", line.session.config_file,
                 "the run file (YAML); without it, flags define the run");
  app.add_option("--set", above.sets,
                 "override one key of the run file: path=value; may be repeated");
  app.add_option("--estimator", above.estimator,
                 "plug-in with an estimator: sets estimator.path; its own flags go after --, as -- "
                 "--width 64");
  app.add_option("--model", model, "network: sets model.type");
  app.add_option("--resume", line.session.resume.wanted,
                 "auto (default): continue from the newest complete checkpoint if there is one; "
                 "never: refuse a folder with checkpoints; PREFIX: this checkpoint")
      ->capture_default_str();
  app.add_flag("--accept-recipe-change", line.session.resume.accept_recipe_change,
               "continue from a checkpoint although the recipe's timeline has changed since");
  add_start_options(&app, &line);
  app.set_version_flag("--version", [] {
    return version_text("lockstepd", {.mpi = first_line(dist::mpi::World::library_version()),
                                      .nccl = text_or_none(dist::nccl_version),
                                      .python = text_or_none(python::module_version)});
  });
  job_server::ServeOptions serve;
  const CLI::App* serve_command = add_serve(&app, &serve);
  const CLI::App* doctor_command = add_doctor(&app);
  add_help_pages(&app);
  const FlagOptions table(&app);
  try {
    refuse_empty_values(argc, argv);
    app.parse(argc, argv);
    // Later overrides win: --set first, then --model, then the flags of the table.
    line.session.overrides = overrides_of(above);
    if (!model.empty())
      line.session.overrides.push_back(
          {.path = "model.type", .value = quoted_text(model), .origin = "--model"});
    for (Override& one : table.overrides()) line.session.overrides.push_back(std::move(one));
    line.is_doctor = doctor_command->parsed();
    if (serve_command->parsed()) line.serve = serve;
    require_fitting(line);
  } catch (const CLI::ExtrasError&) {
    if (speaks) std::fprintf(stderr, "%s\n", unknown_words(app).c_str());
    line.end = ExitCode::kUsage;
  } catch (const CLI::ParseError& fault) {
    if (speaks) app.exit(fault);
    line.end = fault.get_exit_code() != 0 ? ExitCode::kUsage : ExitCode::kDone;
  } catch (const Error& fault) {
    if (speaks) std::fprintf(stderr, "%s\n", fault.what());
    line.end = fault.code();
  }
  return line;
}

// The program lockstepd, one process per rank: start of MPI, one session or a server of jobs, end.
// Errors that all ranks share end it normally; any other error aborts the world.

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
  for (const estimator::Plugin& plugin : estimator::opened_plugins())
    text += fmt::format(" (it may be a bug of the plug-in {})", plugin.path);
  return {ExitCode::kBug, "bug", text};
}

/// Tells the run's exit code, with which mpirun may not end. `lockstep run` takes the first one
/// that is told: that of a rank that aborts the others.
void tell_exit_code(int code) {
  static_cast<void>(log::flush(1.0));
  std::fputs(fmt::format("{}{}\n", kExitCodeLine, code).c_str(), stderr);
}

/// Returns the code with which this process must end. Rank 0 tells it in a world with spares.
int end_of_process(int code, const dist::mpi::World& world) {
  const dist::ProcessInfo& process = world.process_info();
  if (process.spares && process.rank == 0) tell_exit_code(code);
  // After a loss, Open MPI's mpirun never ends if another process ends with a code other than 0.
  return world.has_lost() ? 0 : code;
}

/// Ends this rank with an error. Rank 0 logs an error that all ranks share.
int end_with(const Error& error, const dist::ProcessInfo& process, dist::mpi::World& world) {
  if (!error.on_every_rank() || process.rank == 0) log::error("lockstepd", error.what());
  // abort() does not return: the other ranks may wait for this one inside a collective.
  if (!error.on_every_rank()) {
    if (process.spares) {
      dist::mpi::let_cause_be_told(static_cast<int>(error.code()));
      tell_exit_code(static_cast<int>(error.code()));
    }
    world.abort(static_cast<int>(error.code()));
  }
  world.end_ranks();
  return end_of_process(static_cast<int>(error.code()), world);
}

/// Runs `lockstepd doctor` and returns its exit code.
int examine(dist::Communicator& control, const dist::ProcessInfo& process) {
  const std::vector<Finding> found =
      world_findings(control, process, dist::mpi::World::library_version());
  if (process.rank == 0) std::fputs(text_of(found).c_str(), stdout);
  return exit_code_of(found);
}

/// Checks a submitted job in a child process, which has none of this process' threads.
void check_job(job_server::JobSpec* job) {
  at::set_num_threads(1);
  check_before_queue(job->file, overrides_of(job->above));
  job_server::name_run(job);
}

/// Parts of a process that outlive its sessions.
struct Process {
  const CommandLine& line;
  const BeforeMpi& before;
  dist::mpi::World& world;
  Signals& signals;
  const train::StepHook& on_step;
  const checkpoint::SavePhaseHook& at_save_phase;
  std::unique_ptr<dist::Communicator> control = {};  ///< of all ranks
};

/// Takes this process' place among the ranks.
void take_place(Process& self) {
  const dist::ProcessInfo& info = self.world.process_info();
  log::configure({.rank = info.rank, .world_size = info.world_size});
  self.control = self.world.make_communicator();
}

/// Runs one session on these ranks.
ExitCode hold_session(Process& self, const SessionOptions& options, StopRequest& stop) {
  dist::mpi::World& world = self.world;
  const dist::ProcessInfo& info = world.process_info();
  SessionWorld session{.control = *self.control,
                       .process = info,
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
                       .is_interactive = has_bar(self.line, self.before),
                       .on_step = self.on_step,
                       .at_save_phase = self.at_save_phase,
                       .abort = [&](const Error& error) { (void)end_with(error, info, world); }};
  if (self.line.num_spares > 0) {
    session.can_replace = [&](const Error& error) { return world.can_replace(error); };
    session.end_late = [&](double patience_s) { world.end_late(patience_s); };
  }
  return run_session(options, session);
}

/// Runs the command line's run, and again with other processes in the places of lost ones.
/// memory: nullopt in the first session of a rank that was there from the start.
ExitCode run_to_the_end(Process& self, std::optional<RunMemory> memory) {
  SessionOptions options = self.line.session;
  while (true) {
    options.memory = memory ? &*memory : nullptr;
    RanksLost lost;
    try {
      return hold_session(self, options, self.signals);
    } catch (RanksLost& caught) {
      lost = std::move(caught);
    }
    self.control.reset();
    self.world.replace_lost(lost.patience_s);
    memory = std::move(lost.memory);
    begin_job();
    take_place(self);
  }
}

/// Waits in a spare until it gets a rank. False at the end of the run.
bool wait_as_spare(const Process& self) {
  read_ahead(self.line.session.config_file, self.line.session.overrides);
  if (!self.world.wait_for_rank()) return false;
  begin_job();  // the run reads everything again, from files that may have changed
  return true;
}

/// Runs the jobs of a queue until the server is stopped.
ExitCode serve_jobs(Process& self) {
  return job_server::serve(
      *self.line.serve,
      {.control = *self.control,
       .process = self.world.process_info(),
       .signals = self.signals,
       .run = [&](const SessionOptions& options,
                  StopRequest& stop) { return hold_session(self, options, stop); },
       .check = check_job,
       .abort = [&](int exit_code) { self.world.abort(exit_code); }});
}

int run(const CommandLine& line, const BeforeMpi& before, const train::StepHook& on_step,
        const checkpoint::SavePhaseHook& at_save_phase) {
  // Before MPI starts: signals must not meet its or the default handling.
  Signals signals;
  dist::mpi::World world({.hang_s = line.init_timeout_s}, line.num_spares);
  const dist::ProcessInfo& process = world.process_info();
  Process self{line, before, world, signals, on_step, at_save_phase};
  try {
    const bool is_spare = world.is_spare();
    if (is_spare && !wait_as_spare(self)) {
      world.limit_end(kLongestEnd_s);
      return static_cast<int>(ExitCode::kDone);
    }
    take_place(self);
    // A launcher without MPI support starts several single processes; detect that before they
    // collide.
    dist::require_promised_ranks(before.promised, process.world_size + line.num_spares);
    dist::warn_of_idle_tasks(before.promised);
    if (line.is_doctor) return examine(*self.control, process);
    const ExitCode code =
        line.serve ? serve_jobs(self)
                   : run_to_the_end(self, is_spare ? std::optional(RunMemory()) : std::nullopt);
    world.end_ranks();
    world.limit_end(kLongestEnd_s);
    return end_of_process(static_cast<int>(code), world);
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
  if (line.end) return static_cast<int>(*line.end);
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

namespace lockstep::train_estimator {
constexpr const char* kName = "spec";

int train(const MakeSpec& spec, const std::vector<std::string>& flags) {
  // The estimator becomes a row of the table, so lockstepd finds it like one of a plug-in.
  estimator::estimator_types().add({.name = kName, .value = spec});
  std::vector<std::string> words = {"lockstepd", "--set", std::string("estimator.name=") + kName};
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return daemon::lockstepd_main(static_cast<int>(words.size()), argv.data());
}

}  // namespace lockstep::train_estimator
