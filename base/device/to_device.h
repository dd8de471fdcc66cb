#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

/// The values on `device`; the same tensor if they are there. From the host to a GPU they go
/// through page-locked memory, and the copy stands on the calling thread's stream when this
/// returns: the host waits for nothing, and may change `values` at once unless they lay there
/// before.
at::Tensor to_device(const at::Tensor& values, at::Device device);

/// The same into memory that is there: `to` has the values' shape and type.
void copy_to_device(const at::Tensor& values, const at::Tensor& to);

/// The values in page-locked memory, from which to_device() takes them without a copy on the host.
/// Where no GPU is in use, and in it already: the same tensor.
at::Tensor pinned_for(at::Device device, const at::Tensor& values);

}  // namespace lockstep
