#pragma once

#include <string>
#include <vector>

#include "daemon/doctor/findings.h"

namespace lockstep::daemon {

/// Checks what runs need on this host: version, cores, memory, /dev/shm, the folder for temporary
/// files, launchers in PATH, `program` with its libraries, GPUs and the processes on them.
/// `program` is the lockstepd of the ranks. Starts `mpirun --version`, `srun --version`, `program
/// --version` and `nvidia-smi`; changes nothing. Never throws.
std::vector<Finding> host_findings(const std::string& program);

}  // namespace lockstep::daemon
