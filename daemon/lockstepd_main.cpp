// lockstepd: one rank of a training run. Started by mpirun, srun or alone.

#include <cstdio>

#include <unistd.h>

#include "daemon/lockstepd.h"
#include "python/host.h"

int main(int argc, char** argv) {
  const int exit_code = lockstep::daemon::lockstepd_main(argc, argv);
  if (!lockstep::python::is_running()) return exit_code;
  lockstep::python::flush();
  std::fflush(nullptr);
  ::_exit(exit_code);  // threads of Python code may run on, under which exit() is not safe
}
