#pragma once

#include <ATen/core/Tensor.h>

#include "dist/communicator.h"

namespace lockstep::dist {

/// The values on the host, which waits for the collectives of `comm` that they may come from; the
/// same tensor if it is there already. Throws as comm.settle(): never what an aborted collective
/// left.
inline at::Tensor copy_to_host(Communicator& comm, const at::Tensor& values) {
  comm.settle();
  return values.cpu();
}

}  // namespace lockstep::dist
