// lockstepd: one rank of a training run. Started by mpirun, srun or alone.

#include "daemon/lockstepd.h"

int main(int argc, char** argv) { return lockstep::daemon::lockstepd_main(argc, argv); }
