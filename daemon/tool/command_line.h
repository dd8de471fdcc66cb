#pragma once

#include "daemon/tool/tensor_commands.h"

namespace lockstep::daemon {

/// The whole command line of `lockstep`: reads it, runs the command that it asks for, and prints
/// what that says. The exit code. Throws NeedsTensors before anything is done where the command is
/// one of `tensors` that is not here.
int run_command_line(const TensorCommands& tensors, int argc, char** argv);

}  // namespace lockstep::daemon
