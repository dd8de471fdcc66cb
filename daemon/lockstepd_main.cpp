// lockstepd: one rank of a training run. Started by mpirun, srun or alone.

#include "base/process/end_process.h"
#include "daemon/lockstepd.h"
#include "python/host.h"

int main(int argc, char** argv) {
  const int exit_code = lockstep::daemon::lockstepd_main(argc, argv);
  lockstep::python::flush();
  lockstep::end_process(exit_code);
}
