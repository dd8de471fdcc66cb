#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>

#include "base/tensors/params.h"
#include "model/linear/kept_weight.h"

/// Linear layer, and the gradient of its weight.
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

/// Products that a weight's mask allows.
struct MaskedProducts {
  std::shared_ptr<const KeptWeight> kept;  ///< with kept elements only; null: none
  bool is_semi_sparse = false;             ///< on sparse tensor cores (semi_sparse.h)
};

/// Linear layer: inputs_BI [B, I], weight_OI [O, I], bias_O [O] or undefined -> [B, O], as
/// at::linear.
///
/// If weight and bias are parameters with a gradient tensor (as in optim::FlatParams), backward
/// writes the weight's gradient in place. That avoids a separate product, which for small batches
/// is a third of the step's memory traffic. Backward overwrites the gradient if `grad` (must
/// outlive backward) marks it as stale, else adds to it. It writes in the blocks of
/// write_weight_grad() and reports each block to `grad`. Gradient hooks run as usual.
///
/// Under autocast the products have autocast's type. Backward copies or adds the weight's product
/// to the float32 gradient. The bits equal at::linear's if a forward pass uses the weight once. In
/// all other cases this is at::linear, whose backward only adds. A stale gradient is then zeroed
/// here.
///
/// masked: null without a mask. It must live until after backward, and all elements outside the
/// mask must be 0. Training in float32 on the CPU then uses only the kept elements if that is
/// faster. Then only they get a gradient; the rest of the gradient becomes 0. Training in 16-bit
/// types on a GPU uses sparse tensor cores.
at::Tensor linear(const at::Tensor& inputs_BI, const at::Tensor& weight_OI,
                  const at::Tensor& bias_O, const std::shared_ptr<GradInPlace>& grad,
                  const MaskedProducts* masked = nullptr);

/// Linear layer of a module that belongs to PyTorch: as at::linear, of inputs [..., I]. If the
/// weight has no `grad` when backward reaches it, backward writes the weight's gradient to grad_OI
/// and makes that the weight's `grad`. Else it adds to `grad`. So no fresh tensor is allocated and
/// copied.
///
/// It is at::linear itself where another result could be expected: without gradient mode, under
/// autocast, for types other than float32, if the weight has hooks, and in transforms and traces.
/// Second derivatives and torch.autograd.grad() get the gradient as a new tensor.
at::Tensor linear_into(const at::Tensor& inputs, const at::Tensor& weight_OI,
                       const at::Tensor& bias_O, const at::Tensor& grad_OI);

/// Zeroes a stale gradient of a parameter before a backward that only adds to it.
void settle_grad(const at::Tensor& param, const std::shared_ptr<GradInPlace>& grad);

}  // namespace lockstep::model
