#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

namespace lockstep::model {

/// Computes the weight's gradient from grads_BO [B, O] and inputs_BI [B, I]: the sum over the
/// samples of the output's gradient times the input. Writes it to grad_OI, or adds to it. If the
/// factors have a narrower type than grad_OI, the product is rounded to their type first, as in
/// autograd.
///
/// On CPUs a large gradient with factors of its own type is computed in blocks of rows. The blocks
/// depend only on its shape, so no bit depends on the callback. on_written, if not empty, is called
/// after each block with the number of elements finished so far, from the front. With narrower
/// factors it is not called.
void write_weight_grad(const at::Tensor& grads_BO, const at::Tensor& inputs_BI, bool adds,
                       const std::function<void(int64_t num_elements)>& on_written,
                       at::Tensor grad_OI);

}  // namespace lockstep::model
