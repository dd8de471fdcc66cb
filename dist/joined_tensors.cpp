// Flattening by ATen's helpers. unflatten returns views, so take_apart() copies each part once.
#include "dist/joined_tensors.h"

#include <ATen/ops/flatten_dense_tensors.h>
#include <ATen/ops/unflatten_dense_tensors.h>
#include <ATen/ops/view_as_real.h>

namespace lockstep::dist {

at::Tensor joined(at::TensorList tensors, const at::TensorOptions& options) {
  std::vector<at::Tensor> converted;
  converted.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) converted.push_back(tensor.to(options));
  const at::Tensor joined_K = at::flatten_dense_tensors(converted);
  // A single tensor is not copied by flatten.
  return joined_K.is_alias_of(converted.front()) ? joined_K.clone() : joined_K;
}

void take_apart(const at::Tensor& joined_K, at::TensorList tensors) {
  const std::vector<at::Tensor> parts = at::unflatten_dense_tensors(joined_K, tensors);
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].numel() > 0) tensors[i].copy_(parts[i]);
}

at::Tensor real_view(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

}  // namespace lockstep::dist
