#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/param_shard.h"
#include "base/tensors/params.h"
#include "base/tensors/square_sums.h"
#include "dist/communicator.h"

namespace lockstep::dist {

/// Sum of squares over the gradients of many parameters, in float64. The bits do not depend on how
/// gradients are sharded or cut into buckets.
///
/// On CPUs the method is that of base/tensors/square_sums.h. On a device the unit is a region.
/// There the result is the same on all ranks, but another division rounds differently.

/// Adds the squares of the gradients within the regions, on the CPU or on comm.device(). There the
/// host waits once for all regions. Not collective.
void add_gradient_squares(Communicator& comm, const std::vector<FlatBuffer>& buffers,
                          const std::vector<ParamShard>& regions,
                          const std::vector<int64_t>& row_E_by_param, Superaccumulator* sum);

/// Returns the L2 norm of each region's gradients: float64 [R], on their device.
at::Tensor gradient_norms(const std::vector<FlatBuffer>& buffers,
                          const std::vector<ParamShard>& regions);

/// Sums over the ranks. Collective, one all_reduce of 544 bytes. The same message sums `flags`
/// (each 0 or more) over the ranks.
void join_over_ranks(Communicator& comm, Superaccumulator* sum, std::span<int64_t> flags);

}  // namespace lockstep::dist
