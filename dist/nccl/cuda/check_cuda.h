#pragma once

#include <string_view>

#include <cuda_runtime_api.h>

namespace lockstep::dist::nccl {

/// Throws Error(kUnavailable) with the call's name and CUDA's reason.
void check_cuda(cudaError_t result, std::string_view call);

}  // namespace lockstep::dist::nccl
