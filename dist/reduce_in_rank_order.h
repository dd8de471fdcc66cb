#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <c10/core/ScalarType.h>

#include "dist/communicator.h"

namespace lockstep::dist {

/// out[k] = ((x_0[k] op x_1[k]) op x_2[k]) ... over the N inputs x_r = values_by_rank[r], for k <
/// num_items.
///
/// The one place where CPU backends add, so that their bits agree. 16-bit floats are summed in
/// float32 and rounded once; integer sums wrap; a NaN on any rank makes minimum and maximum NaN.
/// `out` may be one of the inputs, and must not overlap them in part.
void reduce_in_rank_order(std::span<const std::byte* const> values_by_rank, std::byte* out,
                          int64_t num_items, at::ScalarType dtype, ReduceOp op);

}  // namespace lockstep::dist
