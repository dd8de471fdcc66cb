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

/// Sum of squares over the gradients of many parameters, in float64, the same bits however the
/// gradients are divided among ranks or cut into buckets.
///
/// On CPUs the method is that of base/tensors/square_sums.h. On a device the unit is a region: then
/// the result is the same on all ranks, but another division gives other rounding.

/// Adds the squares of the gradients within the regions, on the CPU or, with one wait of the host
/// for all of them, on comm.device(). Not collective.
void add_gradient_squares(Communicator& comm, const std::vector<FlatBuffer>& buffers,
                          const std::vector<ParamShard>& regions,
                          const std::vector<int64_t>& row_E_by_param, Superaccumulator* sum);

/// The lengths of the gradients within the regions as vectors: float64 [R], where they are.
at::Tensor gradient_norms(const std::vector<FlatBuffer>& buffers,
                          const std::vector<ParamShard>& regions);

/// Sums over the ranks. Collective, one all_reduce of 544 bytes: `flags` (each 0 or more) become
/// their sums over the ranks in the same message.
void join_over_ranks(Communicator& comm, Superaccumulator* sum, std::span<int64_t> flags);

}  // namespace lockstep::dist
