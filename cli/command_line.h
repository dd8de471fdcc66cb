#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "daemon/config/estimator_flags.h"
#include "daemon/config/program.h"
#include "launch/ranks.h"

/// Command line of `lockstep`, and its groups of sub-commands. Its sources are compiled twice: for
/// `lockstep`, and for `lockstep-tensors` with the commands that need LibTorch, which takes a
/// quarter of a second to load. They read a run file, whose tables contain networks and data sets,
/// or checkpoints. For these commands `lockstep` executes `lockstep-tensors`.
namespace lockstep::cli {

#ifdef LOCKSTEP_HAS_TENSORS
constexpr bool kHasTensors = true;
#else
constexpr bool kHasTensors = false;
#endif

/// Thrown by `lockstep` for a command that needs LibTorch.
struct NeedsTensors : std::logic_error {
  NeedsTensors() : std::logic_error("a command that needs LibTorch is missing") {}
};

/// Returns call(0), which may use LibTorch. `call` is a lambda with one parameter of type `auto`,
/// so that `lockstep` does not contain its body. That program throws NeedsTensors instead.
template <typename Result = daemon::CommandResult>
Result with_tensors(const auto& call) {
  if constexpr (kHasTensors)
    return call(0);
  else
    throw NeedsTensors();
}

/// Runs `lockstep`: parses the command line, runs the command and prints its text. Returns the exit
/// code. Throws NeedsTensors before anything is done.
int run_command_line(int argc, char** argv);

using Command = std::function<daemon::CommandResult()>;

/// Command line during parsing. The parser's callbacks only store the requested command, which is
/// called afterwards. So usage errors never leave a command half done.
struct ParsedLine {
  std::vector<std::string> flags = {};  ///< of the estimator, from after `--`
  bool takes_flags = false;             ///< true if the requested command takes them
  Command command = {};
};

/// Lets `sub` request this command.
void set_command(CLI::App* sub, ParsedLine* line, const Command& command);
/// The same for a command that needs LibTorch: see with_tensors().
void set_tensor_command(CLI::App* sub, ParsedLine* line, const auto& call) {
  set_command(sub, line, [=] { return with_tensors(call); });
}
/// Adds --set, --estimator and flags after `--`.
void add_above_file(CLI::App* sub, ParsedLine* line, daemon::AboveFile* above,
                    const char* help_of_set = "override one key: path=value");
/// Adds -n, --hosts, --max-restarts, ...
void add_ranks_options(CLI::App* sub, launch::RanksOptions* options);

// Groups of sub-commands. `line` must outlive `app`.

/// Adds `lockstep ckpt`, which shows, tidies and exports checkpoints.
void add_checkpoint_commands(CLI::App* app, ParsedLine* line);
/// Adds the commands that start runs and control running ones: `run`, `ctl`, `doctor`, `launch`.
void add_launch_commands(CLI::App* app, ParsedLine* line);
/// Adds the commands for a queue of jobs: `serve`, `submit`, `ps`, `logs`, `cancel`, `wait`.
void add_queue_commands(CLI::App* app, ParsedLine* line);

}  // namespace lockstep::cli
