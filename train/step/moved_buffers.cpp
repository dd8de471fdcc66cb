#include "train/step/moved_buffers.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include "base/error.h"
#include "dist/joined_tensors.h"

namespace lockstep::train {
namespace {

std::vector<at::Tensor> only(const std::vector<at::Tensor>& all, bool floats) {
  std::vector<at::Tensor> some;
  for (const at::Tensor& tensor : all)
    if (tensor.is_floating_point() == floats) some.push_back(tensor);
  return some;
}

}  // namespace

MovedBuffers::MovedBuffers(model::Model& model, dist::Communicator& control,
                           const std::string& mode, bool elastic)
    : model_(model), control_(control), from_root_(mode == "broadcast") {
  const std::vector<model::Buffer>& buffers = model.buffers();
  const auto first = std::find_if(buffers.begin(), buffers.end(),
                                  [](const model::Buffer& one) { return one.moved_by_forward; });
  has_any_ = first != buffers.end();
  if (!has_any_) return;
  const std::string whose =
      fmt::format("the network's {}, which its forward pass moves", first->name);
  if (elastic)
    throw Error(ExitCode::kConfig, "train",
                fmt::format("run.deterministic: elastic cannot be with {}: it depends on how often "
                            "forward runs; take deterministic: true",
                            whose));
  if (mode == "sync" && control.world_size() > 1)
    throw Error(ExitCode::kConfig, "train",
                fmt::format("train.batch_norm: sync cannot be with {}: it takes layers of "
                            "Lockstep's own; take average",
                            whose));
}

std::vector<at::Tensor> MovedBuffers::tensors() const {
  std::vector<at::Tensor> all;
  for (const model::Buffer& buffer : model_.buffers())
    if (buffer.moved_by_forward && buffer.tensor.numel() > 0)
      all.push_back(dist::real_view(buffer.tensor));
  return all;
}

void MovedBuffers::begin_step() {
  if (!has_any_) return;
  const at::NoGradGuard no_grad;
  before_.clear();
  for (const at::Tensor& tensor : tensors()) before_.push_back(tensor.clone());
}

void MovedBuffers::end_step(bool updated, int64_t num_samples) {
  if (!has_any_) return;
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> all = tensors();
  if (!updated) {
    for (size_t i = 0; i < all.size() && i < before_.size(); ++i) all[i].copy_(before_[i]);
  } else if (control_.world_size() > 1) {
    take_mean(all, num_samples);
    take_largest(all);
  }
}

void MovedBuffers::take_mean(const std::vector<at::Tensor>& all, int64_t num_samples) {
  const std::vector<at::Tensor> floats = only(all, true);
  if (floats.empty()) return;
  const at::TensorOptions options(control_.device());
  at::Tensor values_K = dist::joined(floats, options.dtype(at::kDouble));
  if (from_root_) {
    control_.broadcast(values_K, 0);
  } else {
    const at::Tensor weight = at::full({1}, num_samples, values_K.options());
    at::Tensor sums_V = at::cat({weight, values_K * weight});
    control_.all_reduce(sums_V, dist::ReduceOp::kSum)->wait();
    values_K = sums_V.slice(0, 1) / sums_V[0];
  }
  dist::take_apart(values_K, floats);
}

void MovedBuffers::take_largest(const std::vector<at::Tensor>& all) {
  const std::vector<at::Tensor> numbers = only(all, false);
  if (numbers.empty()) return;
  const at::TensorOptions options(control_.device());
  const at::Tensor values_K = dist::joined(numbers, options.dtype(at::kLong));
  if (from_root_)
    control_.broadcast(values_K, 0);
  else
    control_.all_reduce(values_K, dist::ReduceOp::kMax)->wait();
  dist::take_apart(values_K, numbers);
}

}  // namespace lockstep::train
