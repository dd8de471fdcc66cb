#pragma once

#include <functional>
#include <string>
#include <vector>

#include "daemon/launching/serve_command.h"
#include "daemon/serve/queue_client.h"
#include "daemon/tool/tensor_commands.h"

namespace lockstep::daemon {

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
