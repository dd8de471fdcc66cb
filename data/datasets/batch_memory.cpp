// A tensor is free again when only the pool holds it, which its reference counts show.
#include "data/datasets/batch_memory.h"

#include <ATen/ops/empty.h>

namespace lockstep::data {
namespace {

/// Limit of the pool; a new tensor then displaces the oldest.
constexpr size_t kMaxKeptTensors = 64;

/// True if neither the tensor nor a view of it is used elsewhere.
bool is_ours_alone(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

}  // namespace

at::Tensor BatchMemory::take(at::IntArrayRef shape, at::ScalarType type) const {
  const std::scoped_lock lock(mutex_);
  for (const at::Tensor& tensor : tensors_)
    if (tensor.scalar_type() == type && tensor.sizes() == shape && tensor.is_contiguous() &&
        is_ours_alone(tensor))
      return tensor;
  at::Tensor fresh = at::empty(shape, type);
  // The pool is only a cache: a removed tensor lives on with its user.
  if (tensors_.size() == kMaxKeptTensors) tensors_.erase(tensors_.begin());
  tensors_.push_back(fresh);
  return fresh;
}

}  // namespace lockstep::data
