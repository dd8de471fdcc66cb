#pragma once

#include "daemon/run/training_context.h"
#include "dist/communicator.h"
#include "dist/process_info.h"

namespace lockstep::daemon {

/// What must be equal on every rank before training. All functions are collective and throw the
/// same error everywhere, naming what differs.

/// Throws Error(kConfig) if the world is not the expected one. Only after check_equal_programs():
/// the verdict is the same everywhere because the settings are.
void check_world_size(const RunOptions& options, const dist::ProcessInfo& process);

/// Throws Error(kDisagree) unless settings, binaries and libraries are equal.
void check_equal_programs(const RunConfig& config, const std::string& mpi_version,
                          dist::Communicator& control);

/// Throws Error(kDisagree) unless parameter names and shapes, the data sets and the timeline are
/// equal.
void check_equal_models(const TrainingContext& context);

}  // namespace lockstep::daemon
