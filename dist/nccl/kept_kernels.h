#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "dist/nccl/kept_items.h"

namespace lockstep::dist::nccl {

/// Launch one thread per item on the stream of the current device. item_bytes: 2, 4 or 8 (another
/// width: cudaErrorInvalidValue). The result is that of the launch.
cudaError_t launch_pack_kept(const MaskView& mask, int64_t num_items, int item_bytes,
                             const void* items_E, void* packed_K, cudaStream_t stream);
cudaError_t launch_unpack_kept(const MaskView& mask, int64_t num_items, int item_bytes,
                               const void* packed_K, void* items_E, cudaStream_t stream);

}  // namespace lockstep::dist::nccl
