#pragma once

#include "daemon/config/run_config.h"

namespace lockstep::daemon {

/// Adds a fault for each combination of settings that cannot work, with the reason and a way out.
/// `in`: reader of the whole run file.
void refuse_pairs(const RunConfig& config, ConfigReader* in);

}  // namespace lockstep::daemon
