// lockstep-tensors: all commands of `lockstep`, which executes it for those that need LibTorch.

#include "base/process.h"
#include "cli/command_line.h"
#include "launch/stop_signals.h"
#include "python/interpreter.h"
#include "remote/object_store.h"

int main(int argc, char** argv) {
  if (lockstep::launch::is_supervisor(argc, argv)) lockstep::launch::end_at_stop_signals();
  lockstep::remote::add_stores();  // for commands that read no run file
  const int exit_code = lockstep::cli::run_command_line(argc, argv);
  lockstep::python::flush();
  lockstep::end_process(exit_code);
}
