#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::dist {

/// The tensors' elements behind each other, as `options` say (type, device): a new tensor [K], for
/// one message instead of many. At least one tensor.
at::Tensor joined(at::TensorList tensors, const at::TensorOptions& options);
/// Writes what joined() put behind each other into the tensors, of any strides.
void take_apart(const at::Tensor& joined_K, at::TensorList tensors);

/// A view of the tensor that ranks can add: a complex one as pairs of real numbers.
at::Tensor real_view(const at::Tensor& tensor);

}  // namespace lockstep::dist
