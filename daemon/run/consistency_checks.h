#pragma once

#include "daemon/run/training_context.h"
#include "dist/communicator.h"
#include "dist/process_info.h"

namespace lockstep::daemon {

/// Checks that all ranks agree before training. All functions are collective and throw the same
/// error everywhere. The error names the difference.

/// Throws Error(kConfig) if the world is not the expected one. Call it after
/// check_equal_programs(): all ranks then have equal settings and reach the same result.
void check_world_size(const RunOptions& options, const dist::ProcessInfo& process);

/// Throws Error(kDisagree) unless settings, binaries and libraries are equal.
void check_equal_programs(const RunConfig& config, const std::string& mpi_version,
                          dist::Communicator& control);

/// Throws Error(kDisagree) unless parameter names and shapes, the data sets and the timeline are
/// equal.
void check_equal_models(const TrainingContext& context);

}  // namespace lockstep::daemon
