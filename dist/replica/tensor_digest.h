#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace lockstep::dist {

/// Returns a 64-bit digest of a tensor: dtype, shape and every byte in row-major order. Any single
/// changed 8-byte word changes it. Unrelated contents collide with probability about 2^-64.
/// Designed for speed (several GB/s), not against an adversary. Tensors on a device are copied to
/// the CPU.
int64_t tensor_digest(const at::Tensor& tensor);

}  // namespace lockstep::dist
