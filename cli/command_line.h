#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/tensor_commands.h"
#include "daemon/config/program.h"
#include "job_server/queue_client.h"
#include "job_server/serve_options.h"
#include "launch/ranks.h"

/// Command line of `lockstep`, and its groups of sub-commands.
namespace lockstep::daemon {

/// Runs `lockstep`: parses the command line, runs the command and prints its text. Returns the exit
/// code. Throws NeedsTensors, before anything is done, for a command of `tensors` that this program
/// does not have.
int run_command_line(const TensorCommands& tensors, int argc, char** argv);

}  // namespace lockstep::daemon

namespace CLI {
class App;
}

namespace lockstep::daemon {

/// Sub-commands of `lockstep ckpt`: they show, tidy and export checkpoints.
class CheckpointCommands {
 public:
  /// Parsing stores the requested command in `command`. Call it while this object lives.
  CheckpointCommands(const TensorCommands& tensors, Command* command)
      : tensors_(tensors), command_(*command) {}
  CheckpointCommands(const CheckpointCommands&) = delete;
  CheckpointCommands& operator=(const CheckpointCommands&) = delete;

  /// Adds the commands. Call it once; the object must outlive the parsing.
  void add_to(CLI::App* app);

 private:
  CLI::App* add_inspect(CLI::App* parent, const char* name, const char* help, InspectSave inspect);
  void add_diff(CLI::App* parent);
  void add_export(CLI::App* parent);
  void add_collect(CLI::App* parent);

  const TensorCommands& tensors_;
  Command& command_;
  std::string where_, second_where_;  ///< folders of checkpoints, or prefixes
  std::vector<std::string> sets_;
  std::string export_format_ = "safetensors";
  checkpoint::InspectOptions inspect_;
  checkpoint::DiffOptions diff_;
  checkpoint::GcOptions collect_;
  ExportOptions export_;
};

/// Adds -n, --hosts, --max-restarts, ...
void add_ranks_options(CLI::App* sub, RanksOptions* options);

/// Commands that start runs and talk to running ones: `lockstep run`, `ctl`, `launch`.
class LaunchCommands {
 public:
  /// Arguments as for CheckpointCommands. `flags`: the estimator's flags, read when the command is
  /// called.
  LaunchCommands(const TensorCommands& tensors, Command* command,
                 const std::vector<std::string>* flags)
      : tensors_(tensors), command_(*command), flags_(*flags) {}
  LaunchCommands(const LaunchCommands&) = delete;
  LaunchCommands& operator=(const LaunchCommands&) = delete;

  /// Adds the commands. Call it once; the object must outlive the parsing.
  void add_to(CLI::App* app);
  /// True if the requested command takes flags of an estimator.
  bool takes_flags() const { return takes_flags_; }

 private:
  /// Adds --set, --estimator and flags after `--`.
  void add_above_file(CLI::App* sub, AboveFile* above);
  void add_run(CLI::App* app);
  void add_ctl(CLI::App* app);
  void add_doctor(CLI::App* app);
  void add_slurm(CLI::App* parent);
  void add_kubernetes(CLI::App* parent);

  const TensorCommands& tensors_;
  Command& command_;
  const std::vector<std::string>& flags_;
  bool takes_flags_ = false;
  RunCommandOptions run_;
  CtlOptions ctl_;
  DoctorOptions doctor_;
  SlurmCommandOptions slurm_;
  KubernetesCommandOptions kubernetes_;
};

/// The command line of `lockstep serve`.
struct ServeCommandOptions : RanksOptions {
  ServeOptions server;
};

/// Keeps a server of jobs running: starts its ranks with mpirun, and again after a job has lost
/// ranks (launch/supervisor.h). A job that has ended or has a new checkpoint counts as
/// progress. A job that fails on one rank alone has failed; the ranks restart with the next one.
CommandResult serve_command(const ServeCommandOptions& options);

/// Commands around a queue of jobs: `lockstep serve`, `submit`, `ps`, `logs`, `cancel`, `wait`.
class QueueCommands {
 public:
  /// Arguments as for LaunchCommands.
  QueueCommands(const TensorCommands& tensors, Command* command,
                const std::vector<std::string>* flags)
      : tensors_(tensors), command_(*command), flags_(*flags) {}
  QueueCommands(const QueueCommands&) = delete;
  QueueCommands& operator=(const QueueCommands&) = delete;

  /// Adds the commands. Call it once; the object must outlive the parsing.
  void add_to(CLI::App* app);
  /// True if the requested command takes flags of an estimator.
  bool takes_flags() const { return takes_flags_; }

 private:
  using OfJob = CommandResult (*)(const OfJobOptions&);

  void add_serve(CLI::App* app);
  void add_submit(CLI::App* app);
  void add_ps(CLI::App* app);
  CLI::App* add_of_job(CLI::App* app, const char* name, const char* help, OfJob call);

  const TensorCommands& tensors_;
  Command& command_;
  const std::vector<std::string>& flags_;
  bool takes_flags_ = false;
  ServeCommandOptions serve_;
  SubmitOptions submit_;
  ListOptions list_;
  OfJobOptions of_job_;
};

}  // namespace lockstep::daemon
