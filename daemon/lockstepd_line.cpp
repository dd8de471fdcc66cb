#include "daemon/lockstepd_line.h"

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "daemon/config/estimator_flags.h"
#include "daemon/config/version.h"
#include "daemon/flag_options.h"
#include "daemon/help_pages.h"
#include "daemon/number_range.h"
#include "daemon/server_options.h"
#include "dist/mpi/world.h"
#include "dist/nccl/load_nccl.h"
#include "python/host.h"

// Every rank parses the same command line. Only one rank prints messages, or each would appear many
// times.
namespace lockstep::daemon {
namespace {

constexpr const char* kExamples = R"(Examples:
  mpirun -n 2 lockstepd --config configs/digits.yaml
  mpirun -n 2 lockstepd --config configs/digits.yaml --set run.name=fast --set optimizer.learning_rate=0.05
  lockstepd --config run.yaml --resume never
  mpirun -n 2 lockstepd serve --queue jobs
  mpirun -n 2 lockstepd doctor
  mpirun -n 2 lockstepd --config run.yaml --estimator=build/libmoons.so -- --width 64
  mpirun -n 2 lockstepd --model resnet18 --train_metadata 'data/train*' --eval_metadata 'data/eval*'
    --model_dir models --batch_size 64 --train_steps 10000

Signals: SIGUSR1 saves at the next step and stops (exit 75: run the same command again to go on);
         SIGUSR2 saves and goes on; SIGTERM, SIGINT and SIGHUP save and stop if
         preemption.grace_seconds leaves the time, else stop at the last commit; a second SIGINT
         ends at once; preemption.signals says which others do as SIGUSR1
         (mpirun itself returns 1 after a SIGTERM of its own; SIGUSR1 to mpirun returns 75).
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

CLI::App* add_serve(CLI::App* app, ServeOptions* options) {
  CLI::App* sub = app->add_subcommand(
      "serve", "stay up, and run the jobs of a queue (lockstep submit) one after another");
  sub->fallthrough();
  add_server_options(sub, options);
  sub->footer(
      "Example:\n  mpirun -n 2 lockstepd serve --queue jobs\n"
      "lockstep serve does the same, and starts the ranks again where they are lost.");
  return sub;
}

CLI::App* add_doctor(CLI::App* app) {
  CLI::App* sub = app->add_subcommand(
      "doctor", "measure the links between these ranks, and look at what each has");
  sub->footer("Example:\n  mpirun -n 2 lockstepd doctor\nlockstep doctor looks at the host too.");
  return sub;
}

/// Adds options about the start of the ranks and about their output.
void add_start_options(CLI::App* app, CommandLine* line) {
  app->add_flag(
      "--standby", line->is_standby,
      "be ready, and begin when rank 0 reads a line from its standard input (lockstep run "
      "--spare)");
  app->add_option("--init-timeout", line->init_timeout_s,
                  "seconds for MPI to start on all ranks, before a rank gives up (79); 0: no limit")
      ->check(number(0, 1e9))
      ->capture_default_str();
  app->add_flag("--quiet", line->is_quiet, "only warnings and errors on stderr; files have all");
  app->add_flag("--json-logs", line->logs_json, "each line of the log is an object of JSON");
}

/// Throws Error if the command line describes a run: the jobs contain that.
void refuse_session(const CommandLine& line) {
  if (!line.session.config_file.empty() || !line.session.overrides.empty())
    throw Error(ExitCode::kUsage, "usage",
                "serve and doctor take no run and no keys: lockstep submit takes them");
}

}  // namespace

CommandLine parse_command_line(int argc, char** argv, bool speaks) {
  CommandLine line;
  std::vector<std::string> sets;
  // The estimator's flags come after `--`; remove them before CLI11 parses the rest.
  std::string estimator, model;
  const std::vector<std::string> flags = take_flags(&argc, argv);
  CLI::App app{"Lockstep: data-parallel training, one rank", "lockstepd"};
  app.footer(kExamples);
  app.add_option("--config", line.session.config_file,
                 "the run file (YAML); without it, flags say what to train and how");
  app.add_option("--set", sets, "override one key of the run file: path=value; may be repeated");
  app.add_option("--estimator", estimator,
                 "a plug-in that brings what is trained: sets estimator.path; its own flags stand "
                 "behind --, as -- --width 64");
  app.add_option("--model", model, "which network: sets model.type");
  app.add_option("--resume", line.session.resume.wanted,
                 "auto (default): go on from the newest complete save if there is one; "
                 "never: refuse a folder that holds saves; PREFIX: this save")
      ->capture_default_str();
  app.add_flag("--accept-recipe-change", line.session.resume.accept_recipe_change,
               "go on from a save although the recipe's timeline has changed since");
  add_start_options(&app, &line);
  app.set_version_flag("--version", [] {
    return version_text("lockstepd", {.mpi = first_line(dist::mpi::World::library_version()),
                                      .nccl = text_or_none(dist::nccl_version),
                                      .python = text_or_none(python::module_version)});
  });
  ServeOptions serve;
  const CLI::App* serve_command = add_serve(&app, &serve);
  const CLI::App* doctor_command = add_doctor(&app);
  add_help_pages(&app);
  const FlagOptions table(&app);
  try {
    refuse_empty_values(argc, argv);
    app.parse(argc, argv);
    // Later overrides win: --set first, then --model, then the flags of the table.
    line.session.overrides = overrides_of(sets, estimator, flags);
    if (!model.empty())
      line.session.overrides.push_back(
          {.path = "model.type", .value = quoted_text(model), .origin = "--model"});
    for (Override& one : table.overrides()) line.session.overrides.push_back(std::move(one));
    line.is_doctor = doctor_command->parsed();
    if (serve_command->parsed()) line.serve = serve;
    // A server takes its runs from the queue, and the doctor trains nothing.
    if (line.serve || line.is_doctor) refuse_session(line);
  } catch (const CLI::ExtrasError&) {
    if (speaks) std::fprintf(stderr, "%s\n", unknown_words(app).c_str());
    line.exit_code = static_cast<int>(ExitCode::kUsage);
    line.done = true;
  } catch (const CLI::ParseError& fault) {
    const bool is_usage_error = fault.get_exit_code() != 0;
    if (speaks) app.exit(fault);
    line.exit_code = is_usage_error ? static_cast<int>(ExitCode::kUsage) : 0;
    line.done = true;
  } catch (const Error& fault) {
    if (speaks) std::fprintf(stderr, "%s\n", fault.what());
    line.exit_code = static_cast<int>(fault.code());
    line.done = true;
  }
  return line;
}

}  // namespace lockstep::daemon
