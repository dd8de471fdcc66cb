#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "base/tensors/params.h"
#include "model/products/kept_weight.h"

namespace lockstep::model {

/// inputs_BI [B, I], weight_OI [O, I], bias_O [O] or undefined -> [B, O], as at::linear.
///
/// Where weight and bias are parameters that have a gradient tensor (as in optim::FlatParams),
/// backward writes the weight's gradient in place: the product is never written to memory of its
/// own and read again, which for small batches is a third of the step's memory traffic. It
/// overwrites what stands there if `grad` (must outlive backward) says so, and adds to it
/// otherwise, in the blocks of write_weight_grad() (model/products/weight_grad.h), of which
/// `grad` is told. Hooks on gradients run as ever. Under autocast the products
/// have its type, and backward copies or adds the weight's to the float32 gradient: the bits of
/// at::linear, as long as a forward pass uses the weight once. Elsewhere, and for other shapes,
/// this is at::linear, whose backward only adds: then what is stale is zeroed here.
///
/// `kept`, null or of this weight, all other elements of which are 0, and alive until after
/// backward: in training, in float32 on the CPU, the products are with its elements alone where
/// that pays, and then those alone get a gradient; what stands elsewhere in it becomes 0.
at::Tensor linear(const at::Tensor& inputs_BI, const at::Tensor& weight_OI,
                  const at::Tensor& bias_O, const std::shared_ptr<GradInPlace>& grad,
                  const KeptWeight* kept = nullptr);

/// Zeroes the gradient of a parameter, if it is stale, before a backward that only adds to it.
void settle_grad(const at::Tensor& param, const std::shared_ptr<GradInPlace>& grad);

}  // namespace lockstep::model
