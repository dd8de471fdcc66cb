#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::bench {

/// One update of a list of tensors as PyTorch makes it with its defaults: by a fused kernel for
/// sgd, momentum, adam, adamw and adagrad, in the foreach operations of torch.optim for adadelta
/// and rmsprop. What PyTorch lacks (ftrl, lion) is a loop of operations on each tensor, as its
/// users write them. First values of slots and places of epsilon are TensorFlow's, where that
/// changes no operation.
class TorchUpdates {
 public:
  TorchUpdates(std::string type, double learning_rate, std::vector<at::Tensor> values,
               std::vector<at::Tensor> grads);

  /// Before each step(), untimed: the counts of updates that fused kernels want, a tensor each.
  void count();
  void step();

  const std::vector<at::Tensor>& values() const { return values_; }
  /// "fused", "foreach" or "loop".
  std::string form() const;

 private:
  void adam(double epsilon);
  void adadelta();
  void rmsprop();
  void ftrl(size_t i);
  void lion(size_t i);

  std::string type_;
  double rate_;
  std::vector<at::Tensor> values_, grads_, first_, second_, counts_;
  int num_updates_ = 0;
};

}  // namespace lockstep::bench
