#pragma once

#include <exception>
#include <memory>

#include "base/error.h"
#include "base/threads.h"
#include "daemon/control/requests.h"
#include "daemon/control/watchdog.h"
#include "daemon/run/resume.h"
#include "daemon/run/session.h"
#include "daemon/run/telemetry.h"
#include "daemon/run/training_context.h"
#include "dist/process_info.h"
#include "train/recorder.h"
#include "train/run.h"

/// End of a run: its summary, or the handling of the error that ended it.
namespace lockstep::daemon {

/// Returns the error, with kBug for an exception of another type.
Error known_error(const std::exception& error);

/// Writes and logs how the run ended (rank 0). Each rank writes its last page of series to
/// logs/rank<r>.prom. Returns the exit code of the process.
ExitCode conclude(const train::RunResult& result, const TrainingContext& context,
                  const train::Recorder& recorder, const Telemetry& telemetry,
                  const std::optional<Resumed>& resumed);

/// Writes the summary of a run that ended with an error: exit_reason "failed", the code, the
/// message and how far the run came. Never throws.
void conclude_failed(const std::exception& error, const TrainingContext& context);

/// Handles the error that ended a run whose folder is open. Writes this rank's failure file for the
/// other ranks (daemon/control/failure.h) and adds the cause that other ranks have written to the
/// error. Prints a box for people: rank 0 for an error that all ranks share, otherwise the failing
/// rank. If a rank hangs, writes the newest spans of all ranks too.
void report_failure(std::exception& error, const TrainingContext& context,
                    const dist::ProcessInfo& process, const RankEvents& events);

/// Returns a deadline for the work after a failure: files are written and a save in progress ends.
/// Ends all ranks if that work hangs, since the disk may be the cause. Keep it until then; all
/// arguments must outlive it.
std::unique_ptr<Deadline> limit_shutdown(const std::exception& error, const RunConfig& config,
                                         const SessionWorld& world);

/// Returns the watchdog's actions on this rank. All arguments must outlive it.
WatchdogActions actions_of(const RunConfig& config, const SessionWorld& world,
                           const Requests& requests);

}  // namespace lockstep::daemon
