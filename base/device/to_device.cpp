#include "base/device/to_device.h"

namespace lockstep {

at::Tensor pinned_for(at::Device device, const at::Tensor& values) {
  return device.is_cuda() && values.is_cpu() ? values.pin_memory() : values;
}

at::Tensor to_device(const at::Tensor& values, at::Device device) {
  if (!values.is_cpu() || !device.is_cuda()) return values.to(device);
  // LibTorch reuses pinned memory only after the copies from it are done.
  return pinned_for(device, values).to(device, values.scalar_type(), /*non_blocking=*/true);
}

void copy_to_device(const at::Tensor& values, const at::Tensor& to) {
  to.copy_(pinned_for(to.device(), values), /*non_blocking=*/true);
}

}  // namespace lockstep
