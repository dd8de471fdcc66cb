#pragma once

#include <memory>

#include "base/device/device_graph.h"

namespace lockstep::dist::nccl {

/// Creates a CUDA graph of one GPU of this process, with a private pool in LibTorch's allocator.
std::shared_ptr<DeviceGraph> make_cuda_graph(int device_index);

}  // namespace lockstep::dist::nccl
