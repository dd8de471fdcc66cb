// lockstepd: one rank of a training run. Started by mpirun, srun or alone.

#include "base/process.h"
#include "daemon/lockstepd.h"
#include "launch/stop_signals.h"
#include "python/interpreter.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
namespace {

void hold_signals(int, char**, char**) { lockstep::launch::hold_stop_signals(); }

/// Runs before LibTorch's initialisers, which take the longest. A signal of the launcher that
/// arrives meanwhile stays pending until daemon::Signals exists.
__attribute__((section(".preinit_array"),
               used)) void (*const kBeforeLibraries)(int, char**, char**) = hold_signals;

}  // namespace
#endif

int main(int argc, char** argv) {
  const int exit_code = lockstep::daemon::lockstepd_main(argc, argv);
  lockstep::python::flush();
  lockstep::end_process(exit_code);
}
