#include "optim/param_arena.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include "base/error.h"

namespace lockstep::optim {
namespace {

std::vector<FlatSlice> lay_out(const ParamTable& params, const std::vector<int64_t>& members) {
  std::vector<FlatSlice> slices;
  int64_t offset_E = 0;
  for (const int64_t index : members) {
    const Param& param = params.at(static_cast<size_t>(index));
    const Param& first = params.at(static_cast<size_t>(members.front()));
    check(
        param.decayed == first.decayed && param.tensor.options().type_equal(first.tensor.options()),
        "a buffer holds parameters of one kind");
    slices.push_back({index, offset_E, param.tensor.numel()});
    offset_E += param.tensor.numel();
  }
  return slices;
}

FlatBuffer make_buffer(ParamTable& params, const std::vector<int64_t>& members, at::Device device) {
  const Param& first = params.at(static_cast<size_t>(members.at(0)));
  FlatBuffer buffer{.decayed = first.decayed, .slices = lay_out(params, members)};
  const int64_t num_elements = buffer.slices.back().offset_E + buffer.slices.back().num_elements;
  buffer.values_E =
      at::empty({num_elements}, first.tensor.options().requires_grad(false).device(device));
  buffer.grads_E = at::zeros_like(buffer.values_E);
  for (const FlatSlice& slice : buffer.slices) {
    at::Tensor& tensor = params[static_cast<size_t>(slice.param)].tensor;
    const at::Tensor view = view_of_slice(buffer.values_E, slice, params);
    view.copy_(tensor.detach());
    tensor.set_data(view);
    tensor.mutable_grad() = view_of_slice(buffer.grads_E, slice, params);
  }
  return buffer;
}

}  // namespace

at::Tensor view_of_slice(const at::Tensor& flat_E, const FlatSlice& slice,
                         const ParamTable& params) {
  return flat_E.narrow(0, slice.offset_E, slice.num_elements)
      .view(params[static_cast<size_t>(slice.param)].tensor.sizes());
}

ParamArena::ParamArena(ParamTable& params, const std::vector<std::vector<int64_t>>& plan,
                       at::Device device)
    : params_(params) {
  const at::NoGradGuard no_grad;
  std::vector<int> num_uses(params.size(), 0);
  for (const auto& members : plan)
    for (const int64_t index : members) ++num_uses.at(static_cast<size_t>(index));
  check(std::all_of(num_uses.begin(), num_uses.end(), [](int uses) { return uses == 1; }),
        "a plan names each parameter once");
  for (const auto& members : plan) buffers_.push_back(make_buffer(params, members, device));
}

void ParamArena::zero_grads() {
  for (FlatBuffer& buffer : buffers_) buffer.grads_E.zero_();
}

}  // namespace lockstep::optim
