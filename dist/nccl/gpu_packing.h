#pragma once

#include <memory>

#include "base/device/device_packing.h"
#include "dist/nccl/gpu_calls.h"
#include "dist/nccl/kernels/kept_items.h"

namespace lockstep::dist::nccl {

MaskView view_of(const DeviceMask& mask);

/// Packing by kernels (dist/nccl/kernels/kept_items.h). Results are bit-identical to those of the
/// CPU's functions, since items are only moved.
class GpuPacking final : public DevicePacking {
 public:
  explicit GpuPacking(std::shared_ptr<GpuCalls> gpu);

  DeviceMask to_device(const uint8_t* bits, int64_t num_items) const override;
  void pack_kept(const DeviceMask& mask, const at::Tensor& items_E,
                 const at::Tensor& packed_K) const override;
  void unpack_kept(const DeviceMask& mask, const at::Tensor& packed_K,
                   const at::Tensor& items_E) const override;

 private:
  const std::shared_ptr<GpuCalls> gpu_;
};

}  // namespace lockstep::dist::nccl
