#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::dist {

/// Concatenates the tensors' elements into a new tensor [K] with these options (type, device), for
/// one message instead of many. At least one tensor.
at::Tensor joined(at::TensorList tensors, const at::TensorOptions& options);
/// Copies the parts of joined() back into the tensors, of any strides.
void take_apart(const at::Tensor& joined_K, at::TensorList tensors);

/// Returns a view of the tensor that ranks can add: a complex tensor as pairs of real numbers.
at::Tensor real_view(const at::Tensor& tensor);

}  // namespace lockstep::dist
