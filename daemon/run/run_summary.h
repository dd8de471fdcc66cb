#pragma once

#include <filesystem>

#include "base/error.h"
#include "daemon/run/resume.h"
#include "daemon/run/telemetry.h"
#include "daemon/run/training_context.h"
#include "train/recorder.h"
#include "train/run.h"

namespace lockstep::daemon {

/// Writes and logs how the run ended (rank 0). Each rank writes its last page of series to
/// logs/rank<r>.prom. Returns the exit code of the process.
ExitCode conclude(const train::RunResult& result, const TrainingContext& context,
                  const train::Recorder& recorder, const Telemetry& telemetry,
                  const std::optional<Resumed>& resumed);

/// Writes the summary of a run that ended with an error: exit_reason "failed", the code, the
/// message and how far the run came. Never throws.
void conclude_failed(const std::exception& error, const TrainingContext& context);

}  // namespace lockstep::daemon
