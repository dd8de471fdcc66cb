#pragma once

#include <exception>

#include "base/error.h"
#include "daemon/control/requests.h"
#include "daemon/control/watchdog.h"
#include "daemon/run/resume.h"
#include "daemon/run/session.h"
#include "daemon/run/telemetry.h"
#include "daemon/run/training_context.h"
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

/// Handles the error that ended a run whose folder is open: tells the other ranks and people of it,
/// writes the summary and ends a save in progress. Adds the cause that other ranks have written to
/// the error. Ends all ranks, and does not return, if a save in progress waits for a rank that
/// hangs.
void end_failed(std::exception& error, TrainingContext& context, Telemetry& telemetry,
                const SessionWorld& world, const RankEvents& events, const StopRequest& requests);

/// Returns the watchdog's actions on this rank. All arguments must outlive it.
WatchdogActions actions_of(const RunConfig& config, const SessionWorld& world,
                           const Requests& requests);

}  // namespace lockstep::daemon
