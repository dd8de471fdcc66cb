#pragma once

#include <string>
#include <vector>

#include "daemon/tool/tensor_commands.h"

namespace lockstep::daemon {

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

}  // namespace lockstep::daemon
