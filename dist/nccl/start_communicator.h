#pragma once

#include <memory>

#include "dist/communicator.h"
#include "dist/nccl/gpu_calls.h"
#include "dist/nccl/watched_comm.h"

namespace lockstep::dist::nccl {

/// Creates a communicator over the devices of the ranks of `control`; `gpu` is that of this rank.
/// Collective over `control`, which is not kept. If a rank cannot take part or is late, every rank
/// throws the error of the lowest such rank.
std::unique_ptr<Communicator> start_communicator(Communicator& control,
                                                 std::shared_ptr<GpuCalls> gpu,
                                                 const WatchLimits& limits);

}  // namespace lockstep::dist::nccl
