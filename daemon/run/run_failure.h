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

/// Handles the error that ended a run whose folder is open. Writes this rank's failure file for the
/// other ranks (daemon/watch/failure.h) and adds the cause that other ranks have written to the
/// error. Prints a box for people: rank 0 for an error that all ranks share, otherwise the failing
/// rank. If a rank hangs, writes the newest spans of all ranks too.
void tell_failure(std::exception& error, const TrainingContext& context,
                  const dist::ProcessInfo& process, const RankEvents& events);

/// Returns a deadline for the work after a failure: files are written and a save in progress ends.
/// Ends all ranks if that work hangs, since the disk may be the cause. Keep it until then; all
/// arguments must outlive it.
std::unique_ptr<Deadline> limit_the_end(const std::exception& error, const RunConfig& config,
                                        const SessionWorld& world);

/// Returns the watchdog's actions on this rank. All arguments must outlive it.
WatchdogActions actions_of(const RunConfig& config, const SessionWorld& world,
                           const Requests& requests);

}  // namespace lockstep::daemon
