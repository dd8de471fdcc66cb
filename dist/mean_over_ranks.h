#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dist/communicator.h"

namespace lockstep::dist {

/// Replaces each tensor by its mean over the N ranks, in place: the communicator's sum, divided by
/// N. Neighbours of one dtype that are small travel together, up to message_bytes; no bit of the
/// result depends on it. Tensors of floats, contiguous, on comm.device(), of any shape; equal
/// shapes, dtypes and order on all ranks. Collective.
void mean_over_ranks(Communicator& comm, const std::vector<at::Tensor>& tensors,
                     int64_t message_bytes);

}  // namespace lockstep::dist
