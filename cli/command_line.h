#pragma once

#include <string>
#include <vector>

#include "cli/tensor_commands.h"
#include "daemon/config/estimator_flags.h"
#include "launch/ranks.h"

/// Command line of `lockstep`, and its groups of sub-commands.
namespace lockstep::daemon {

/// Runs `lockstep`: parses the command line, runs the command and prints its text. Returns the exit
/// code. Throws NeedsTensors, before anything is done, for a command of `tensors` that this program
/// does not have.
int run_command_line(const TensorCommands& tensors, int argc, char** argv);

/// Command line during parsing. The parser's callbacks only store the requested command, which is
/// called afterwards. So usage errors never leave a command half done.
struct ParsedLine {
  const TensorCommands& tensors;
  std::vector<std::string> flags = {};  ///< of the estimator, from after `--`
  bool takes_flags = false;             ///< true if the requested command takes them
  Command command = {};
};

/// Lets `sub` request this command.
void set_command(CLI::App* sub, ParsedLine* line, const Command& command);
/// Adds --set, --estimator and flags after `--`.
void add_above_file(CLI::App* sub, ParsedLine* line, AboveFile* above,
                    const char* help_of_set = "override one key: path=value");
/// Adds -n, --hosts, --max-restarts, ...
void add_ranks_options(CLI::App* sub, RanksOptions* options);

// Groups of sub-commands. `line` must outlive `app`.

/// Adds `lockstep ckpt`, which shows, tidies and exports checkpoints.
void add_checkpoint_commands(CLI::App* app, ParsedLine* line);
/// Adds the commands that start runs and control running ones: `run`, `ctl`, `doctor`, `launch`.
void add_launch_commands(CLI::App* app, ParsedLine* line);
/// Adds the commands for a queue of jobs: `serve`, `submit`, `ps`, `logs`, `cancel`, `wait`.
void add_queue_commands(CLI::App* app, ParsedLine* line);

}  // namespace lockstep::daemon
