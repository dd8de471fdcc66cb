#pragma once

#include <string>
#include <vector>

#include "daemon/config/overrides.h"
#include "dist/communicator.h"
#include "train/step/stop_request.h"

namespace lockstep::daemon {

/// Reads a run file as the session will, whose faults are the session's to tell: what that leaves
/// in memory makes the second reading short.
void read_ahead(const std::string& config_file, const std::vector<Override>& overrides);

/// Collective. Ranks that are started before they are needed (`lockstep run --spare`) wait until
/// rank 0 reads a line from its standard input, which mpirun passes on: true. False where the input
/// ends without one, or a rank is told to stop.
bool stand_by(dist::Communicator& control, const train::StopRequest& stop);

}  // namespace lockstep::daemon
