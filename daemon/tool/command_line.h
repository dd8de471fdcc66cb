#pragma once

#include "daemon/tool/tensor_commands.h"

namespace lockstep::daemon {

/// Runs `lockstep`: parses the command line, runs the command and prints its text. Returns the exit
/// code. Throws NeedsTensors, before anything is done, for a command of `tensors` that this program
/// does not have.
int run_command_line(const TensorCommands& tensors, int argc, char** argv);

}  // namespace lockstep::daemon
