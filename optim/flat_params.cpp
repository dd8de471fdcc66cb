#include "optim/flat_params.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/tensors/large_pages.h"

namespace lockstep::optim {
namespace {

void require_each_once(const BufferPlan& plan, size_t num_params) {
  std::vector<int> num_uses(num_params, 0);
  for (const auto& members : plan)
    for (const int64_t index : members) ++num_uses.at(static_cast<size_t>(index));
  check(std::all_of(num_uses.begin(), num_uses.end(), [](int uses) { return uses == 1; }),
        "a plan names each parameter once");
}

std::vector<FlatSlice> flat_slices(const ParamTable& params, const std::vector<int64_t>& members,
                                   const std::vector<bool>& trainable) {
  std::vector<FlatSlice> slices;
  int64_t offset_E = 0;
  const auto first = static_cast<size_t>(members.at(0));
  for (const int64_t index : members) {
    const auto i = static_cast<size_t>(index);
    check(group_of(params[i]) == group_of(params[first]) && trainable[i] == trainable[first] &&
              params[i].tensor.options().type_equal(params[first].tensor.options()),
          "a buffer holds parameters of one kind");
    slices.push_back({index, offset_E, params[i].tensor.numel()});
    offset_E += params[i].tensor.numel();
  }
  return slices;
}

/// The parameter's tensor and gradient become views of the buffer.
void move_in(const FlatBuffer& buffer, const FlatSlice& slice, ParamTable& params) {
  at::Tensor& tensor = params[static_cast<size_t>(slice.param)].tensor;
  const at::Tensor view = view_of_slice(buffer.values_E, slice, params);
  view.copy_(tensor.detach());
  tensor.mutable_grad() = at::Tensor();
  tensor.set_data(view);
  tensor.set_requires_grad(!buffer.frozen);
  if (!buffer.frozen) tensor.mutable_grad() = view_of_slice(buffer.grads_E, slice, params);
}

FlatBuffer make_buffer(ParamTable& params, const std::vector<int64_t>& members,
                       const std::vector<bool>& trainable, at::Device device) {
  FlatBuffer buffer{.slices = flat_slices(params, members, trainable)};
  const Param& first = params[static_cast<size_t>(members.front())];
  buffer.group = group_of(first);
  buffer.frozen = !trainable[static_cast<size_t>(members.front())];
  const int64_t num_elements = buffer.slices.back().offset_E + buffer.slices.back().num_elements;
  buffer.values_E = empty_on_large_pages(
      num_elements, first.tensor.options().requires_grad(false).device(device));
  if (!buffer.frozen)
    buffer.grads_E = zeros_on_large_pages(num_elements, buffer.values_E.options());
  for (const FlatSlice& slice : buffer.slices) move_in(buffer, slice, params);
  return buffer;
}

}  // namespace

at::Tensor view_of_slice(const at::Tensor& flat_E, const FlatSlice& slice,
                         const ParamTable& params) {
  return flat_E.narrow(0, slice.offset_E, slice.num_elements)
      .view(params[static_cast<size_t>(slice.param)].tensor.sizes());
}

FlatParams::FlatParams(ParamTable& params, const BufferPlan& plan, at::Device device)
    : params_(params) {
  const at::NoGradGuard no_grad;
  require_each_once(plan, params_.size());
  const std::vector<bool> all(params_.size(), true);
  for (const auto& members : plan) buffers_.push_back(make_buffer(params_, members, all, device));
}

std::vector<FlatBuffer> FlatParams::flatten(const BufferPlan& plan,
                                            const std::vector<bool>& trainable) {
  const at::NoGradGuard no_grad;
  require_each_once(plan, params_.size());
  const at::Device where = device();
  std::vector<FlatBuffer> now;
  for (const auto& members : plan) now.push_back(make_buffer(params_, members, trainable, where));
  std::swap(buffers_, now);
  return now;
}

int64_t FlatParams::num_trainable_elements() const {
  int64_t num_elements = 0;
  for (const FlatBuffer& buffer : buffers_)
    if (!buffer.frozen) num_elements += buffer.values_E.numel();
  return num_elements;
}

void FlatParams::zero_grads() {
  for (const FlatBuffer& buffer : buffers_) {
    if (buffer.frozen) continue;
    int64_t begin_E = 0;  // of what is to be zeroed in one call
    const auto zero_until = [&](int64_t end_E) {
      if (begin_E < end_E) buffer.grads_E.narrow(0, begin_E, end_E - begin_E).zero_();
    };
    for (const FlatSlice& slice : buffer.slices) {
      const Param& param = params_[static_cast<size_t>(slice.param)];
      if (param.grad_is_stale == nullptr) continue;
      *param.grad_is_stale = true;
      zero_until(slice.offset_E);
      begin_E = slice.offset_E + slice.num_elements;
    }
    zero_until(buffer.grads_E.numel());
  }
}

void FlatParams::require_views() const {
  const auto is_at = [](const at::Tensor& part, const at::Tensor& flat_E, int64_t offset_E) {
    return !part.defined() ||
           part.const_data_ptr() ==
               static_cast<const char*>(flat_E.const_data_ptr()) + offset_E * flat_E.element_size();
  };
  for (const FlatBuffer& buffer : buffers_)
    for (const FlatSlice& slice : buffer.slices) {
      const Param& param = params_[static_cast<size_t>(slice.param)];
      const bool holds =
          is_at(param.tensor, buffer.values_E, slice.offset_E) &&
          (buffer.frozen || is_at(param.tensor.grad(), buffer.grads_E, slice.offset_E));
      if (holds) continue;
      throw Error(
          ExitCode::kConfig, "optim",
          fmt::format("the network's own code put other memory in the place of {} or of its "
                      "gradient (zero_grad() or load_state_dict(assign=True) in forward do "
                      "that): no update would reach it",
                      param.name));
    }
}

void FlatParams::zero_unwritten_grads() {
  for (const Param& param : params_) {
    if (param.grad_is_stale == nullptr || !*param.grad_is_stale) continue;
    *param.grad_is_stale = false;
    if (param.tensor.grad().defined()) param.tensor.mutable_grad().zero_();
  }
}

}  // namespace lockstep::optim
