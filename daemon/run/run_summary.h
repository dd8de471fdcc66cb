#pragma once

#include <filesystem>

#include "base/error.h"
#include "daemon/run/resume.h"
#include "daemon/run/telemetry.h"
#include "daemon/run/training_context.h"
#include "train/recorder.h"
#include "train/run.h"

namespace lockstep::daemon {

/// Writes and tells how the run ended (rank 0), and keeps each rank's last page of series in
/// logs/rank<r>.prom. Returns the process' exit code.
ExitCode conclude(const train::RunResult& result, const TrainingContext& context,
                  const train::Recorder& recorder, const Telemetry& telemetry,
                  const std::optional<Resumed>& resumed);

/// The summary of a run that an error ended: exit_reason "failed", the code, the message and how
/// far it came. Never throws.
void conclude_failed(const std::exception& error, const TrainingContext& context);

}  // namespace lockstep::daemon
