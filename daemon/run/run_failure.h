#pragma once

#include <exception>
#include <memory>

#include "base/threads/deadline.h"
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

/// Ends all ranks, should what follows a failure (files are written, a save under way ends) not
/// come to an end by itself: the disk may be what fails. Keep it until then; all must outlive it.
std::unique_ptr<Deadline> limit_the_end(const std::exception& error, const RunConfig& config,
                                        const SessionWorld& world);

/// What the watchdog of this rank does; all must outlive it.
WatchdogActions actions_of(const RunConfig& config, const SessionWorld& world,
                           const Requests& requests);

}  // namespace lockstep::daemon
