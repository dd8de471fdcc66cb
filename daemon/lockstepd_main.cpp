// lockstepd: one rank of a training run. Started by mpirun, srun or alone.

#include "base/end_process.h"
#include "daemon/lockstepd.h"

int main(int argc, char** argv) {
  lockstep::end_process(lockstep::daemon::lockstepd_main(argc, argv));
}
