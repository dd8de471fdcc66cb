#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::train {

/// Sum over the samples of -log softmax(logits)[target]: a scalar, 0 for no samples. Symbols: B
/// samples, C classes. A sum, not a mean: ranks hold different counts, and the sum over ranks is
/// divided once by the global count.
at::Tensor cross_entropy_sum(const at::Tensor& logits_BC, const at::Tensor& targets_B);

/// How many targets have the highest logit.
int64_t num_correct(const at::Tensor& logits_BC, const at::Tensor& targets_B);

}  // namespace lockstep::train
