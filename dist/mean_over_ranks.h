#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dist/communicator.h"

namespace lockstep::dist {

/// Replaces each tensor by its mean over the N ranks, in place: the communicator's sum, divided by
/// N. Small neighbours of one dtype share a message of up to message_bytes, which changes no bit of
/// the result. Contiguous float tensors on comm.device(), of any shape. Shapes, dtypes and order
/// are equal on all ranks. Collective.
void mean_over_ranks(Communicator& comm, const std::vector<at::Tensor>& tensors,
                     int64_t message_bytes);

}  // namespace lockstep::dist
