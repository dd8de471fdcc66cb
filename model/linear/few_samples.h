#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

/// Products of a linear layer for few samples and a large weight. Reading or writing the weight
/// takes most of their time. LibTorch's products of such shapes take two to four times as long
/// (bench/results/tried.md).
///
///   if (has_few_samples(inputs_BI, weight_OI))
///     outputs_BO = few_outputs(inputs_BI, weight_OI, bias_O);
///
/// Symbols: B = samples, I = inputs, O = outputs. Float32 on the CPU. Uses ATen's threads. Each sum
/// is added in the order of inputs, outputs or samples. So no bit depends on the number of threads.
namespace lockstep::model {

/// True if these functions are faster: 2 to 16 samples, 2^20 or more weight elements, AVX2.
bool few_samples_pay(int64_t num_samples, int64_t num_elements);

/// True if they are faster and usable: all tensors are contiguous float32 on the CPU.
bool has_few_samples(const at::Tensor& samples_BN, const at::Tensor& weight_OI);

/// Computes [B, I] -> [B, O]; bias_O may be undefined.
at::Tensor few_outputs(const at::Tensor& inputs_BI, const at::Tensor& weight_OI,
                       const at::Tensor& bias_O);
/// Computes the inputs' gradient [B, O] -> [B, I].
at::Tensor few_input_grads(const at::Tensor& grads_BO, const at::Tensor& weight_OI);
struct Rows {
  int64_t begin = 0, end = 0;
};
/// Writes these rows of grad_OI, or adds to them: the sum over the samples of the output's gradient
/// times the input.
void write_few_grads(const at::Tensor& grads_BO, const at::Tensor& inputs_BI, bool adds,
                     const Rows& rows, const at::Tensor& grad_OI);

}  // namespace lockstep::model
