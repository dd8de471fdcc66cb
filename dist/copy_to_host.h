#pragma once

#include <ATen/core/Tensor.h>

#include "dist/communicator.h"

namespace lockstep::dist {

/// Returns the values on the host; the same tensor if it is there already. First waits for the
/// collectives of `comm` that the values may depend on. Throws like comm.settle(), so it never
/// returns what an aborted collective left.
inline at::Tensor copy_to_host(Communicator& comm, const at::Tensor& values) {
  comm.settle();
  return values.cpu();
}

}  // namespace lockstep::dist
