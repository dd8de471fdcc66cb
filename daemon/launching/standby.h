#pragma once

#include <string>
#include <vector>

#include "daemon/config/overrides.h"
#include "dist/communicator.h"
#include "train/step/stop_request.h"

namespace lockstep::daemon {

/// Reads a run file as the session will, to load files and libraries into memory in advance. Faults
/// are ignored here; the session reports them.
void read_ahead(const std::string& config_file, const std::vector<Override>& overrides);

/// Waits in ranks that are started before they are needed (`lockstep run --spare`). Returns true
/// once rank 0 reads a line from its standard input, which mpirun passes on. Returns false if the
/// input ends without a line, or a rank is told to stop. Collective.
bool stand_by(dist::Communicator& control, const train::StopRequest& stop);

}  // namespace lockstep::daemon
