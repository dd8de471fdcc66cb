#pragma once

#include <string>
#include <vector>

#include "daemon/doctor/findings.h"

namespace lockstep::daemon {

/// What this host has for runs: version, cores, memory, /dev/shm, the folder for temporary files,
/// launchers in PATH, `program` (the lockstepd that ranks run) with its libraries, GPUs and who is
/// busy there. Starts `mpirun --version`, `srun --version`, `program --version` and `nvidia-smi`;
/// changes nothing. Never throws.
std::vector<Finding> host_findings(const std::string& program);

}  // namespace lockstep::daemon
