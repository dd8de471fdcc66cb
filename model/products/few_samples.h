#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace lockstep::model {

/// A linear layer's products of few samples with a large weight, whose time is that of reading or
/// writing the weight: LibTorch's products of such shapes take two to four times as long
/// (docs/results/tried.md).
///
///   if (has_few_samples(inputs_BI, weight_OI)) outputs_BO = few_outputs(inputs_BI, weight_OI,
///   bias)
///
/// Symbols: B = samples, I = inputs, O = outputs. Float32 on the CPU. Each sum is added up in the
/// order of inputs, outputs or samples: no bit depends on ATen's threads, which are used.

/// Whether these functions pay: 2 to 16 samples, 2^20 elements of the weight or more, a processor
/// with AVX2.
bool few_samples_pay(int64_t num_samples, int64_t num_elements);

/// Whether they pay and may be called: all is float32 on the CPU, and contiguous.
bool has_few_samples(const at::Tensor& samples_BN, const at::Tensor& weight_OI);

/// [B, I] -> [B, O]; bias_O may be undefined.
at::Tensor few_outputs(const at::Tensor& inputs_BI, const at::Tensor& weight_OI,
                       const at::Tensor& bias_O);
/// [B, O] -> [B, I]
at::Tensor few_input_grads(const at::Tensor& grads_BO, const at::Tensor& weight_OI);
struct Rows {
  int64_t begin = 0, end = 0;
};
/// These rows of grad_OI become the sum over the samples of output's gradient times input, or get
/// it added.
void write_few_grads(const at::Tensor& grads_BO, const at::Tensor& inputs_BI, bool adds,
                     const Rows& rows, const at::Tensor& grad_OI);

}  // namespace lockstep::model
