#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

namespace lockstep::model {

/// grads_BO [B, O], inputs_BI [B, I]: grad_OI becomes the sum over the samples of output's gradient
/// times input, or gets it added. Factors of a narrower type than grad_OI: the product is rounded
/// to their type first, as autograd does.
///
/// On CPUs a large gradient of the factors' own type is made in blocks of rows, which depend on its
/// shape alone, so that no bit depends on who listens: on_written, if not empty, is told after each
/// how many elements from the front are there. Of narrower factors nothing is told.
void write_weight_grad(const at::Tensor& grads_BO, const at::Tensor& inputs_BI, bool adds,
                       const std::function<void(int64_t num_elements)>& on_written,
                       at::Tensor grad_OI);

}  // namespace lockstep::model
