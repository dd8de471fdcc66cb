// lockstep: the command-line tool. It needs neither MPI nor a GPU; `run` calls mpirun.
//
// This program is not linked to LibTorch, so it starts in a few milliseconds. For commands that
// need LibTorch it executes lockstep-tensors.

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include <unistd.h>

#include "base/error.h"
#include "base/process.h"
#include "cli/command_line.h"
#include "launch/stop_signals.h"

namespace {

/// Executes lockstep-tensors with the same command line in this process. So signals and the exit
/// code are that program's.
int execute_tensors_program(char** argv) {
  std::error_code ignored;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  const auto program = (folder / "../lib/lockstep/lockstep-tensors").lexically_normal();
  ::execv(program.c_str(), argv);
  std::fprintf(stderr, "[start] %s cannot be started (%s): install it next to this program\n",
               program.c_str(), std::strerror(errno));
  return static_cast<int>(lockstep::ExitCode::kUnavailable);
}

int run(int argc, char** argv) {
  namespace launch = lockstep::launch;
  const bool supervises = launch::is_supervisor(argc, argv);
  if (supervises) launch::end_at_stop_signals();
  try {
    return lockstep::cli::run_command_line(argc, argv);
  } catch (const lockstep::cli::NeedsTensors&) {
    // A signal during exec() must stay pending until the other program handles it.
    if (supervises) launch::hold_stop_signals();
    return execute_tensors_program(argv);
  }
}

}  // namespace

int main(int argc, char** argv) { lockstep::end_process(run(argc, argv)); }
