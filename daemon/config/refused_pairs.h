#pragma once

#include "daemon/config/run_config.h"

namespace lockstep::daemon {

/// Faults for settings that cannot be together, each with the reason and a way out. `in`: of the
/// whole run file.
void refuse_pairs(const RunConfig& config, ConfigReader* in);

}  // namespace lockstep::daemon
