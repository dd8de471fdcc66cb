#include "train/step/loss.h"

#include <ATen/Functions.h>

namespace lockstep::train {

at::Tensor cross_entropy_sum(const at::Tensor& logits_BC, const at::Tensor& targets_B) {
  return at::cross_entropy_loss(logits_BC, targets_B, /*weight=*/{}, at::Reduction::Sum);
}

int64_t num_correct(const at::Tensor& logits_BC, const at::Tensor& targets_B) {
  return logits_BC.argmax(1).eq(targets_B).sum().item<int64_t>();
}

}  // namespace lockstep::train
