#pragma once

#include <exception>

#include "daemon/control/requests.h"
#include "daemon/run/session.h"
#include "daemon/run/training_context.h"
#include "daemon/watch/watchdog.h"
#include "dist/process_info.h"

namespace lockstep::daemon {

/// What ended a run whose folder is open: leaves word for the other ranks (daemon/watch/failure.h),
/// adds to the error what they have left, and shows it to people in a box: rank 0 for what all
/// ranks share, else the rank whose own it is.
/// Where a rank hangs, the newest events of all are written too.
void tell_failure(std::exception& error, const TrainingContext& context,
                  const dist::ProcessInfo& process, const RankEvents& events);

/// What the watchdog of this rank does; all must outlive it.
WatchdogActions actions_of(const RunConfig& config, const SessionWorld& world,
                           const Requests& requests);

}  // namespace lockstep::daemon
