#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace lockstep::dist {

/// 64 bits of a tensor's contents: dtype, shape and every byte in row-major order. Any single
/// changed 8-byte word changes it; unrelated contents share it with probability about 2^-64. Made
/// for speed (several GB/s), not against an adversary. Tensors elsewhere than on the CPU are copied
/// there.
int64_t tensor_digest(const at::Tensor& tensor);

}  // namespace lockstep::dist
