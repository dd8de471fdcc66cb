// Flat buffers: one tensor for the values and one for the gradients of several parameters. The
// parameters' tensors become views by set_data(), so the network's code sees no difference.
#include "optim/flat_params.h"

#include <algorithm>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/lerp.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/tensors/tensor_memory.h"
#include "optim/rules.h"

namespace lockstep::optim {
namespace {

/// Returns a buffer's layout, without memory.
FlatBuffer layout_of(const ParamTable& params, const std::vector<int64_t>& members,
                     const std::vector<bool>& trainable) {
  const auto first = static_cast<size_t>(members.at(0));
  FlatBuffer buffer;
  buffer.group = group_of(params[first]);
  buffer.rate_multiplier = params[first].rate_multiplier;
  buffer.frozen = !trainable[first];
  buffer.is_matrix = params[first].is_matrix;
  check(!buffer.is_matrix || members.size() == 1, "a matrix has a buffer to itself");
  int64_t offset_E = 0;
  for (const int64_t index : members) {
    const auto i = static_cast<size_t>(index);
    check(group_of(params[i]) == buffer.group && trainable[i] == trainable[first] &&
              params[i].is_matrix == buffer.is_matrix &&
              params[i].rate_multiplier == buffer.rate_multiplier &&
              params[i].tensor.options().type_equal(params[first].tensor.options()),
          "a buffer holds parameters of one kind");
    buffer.slices.push_back({index, offset_E, params[i].tensor.numel()});
    offset_E += params[i].tensor.numel();
  }
  return buffer;
}

/// Makes the parameter's tensor and gradient views of the buffer. Copies the value unless it is
/// undefined.
void move_in(const FlatBuffer& buffer, const FlatSlice& slice, const at::Tensor& value,
             ParamTable& params) {
  at::Tensor& tensor = params[static_cast<size_t>(slice.param)].tensor;
  const at::Tensor view = view_of_slice(buffer.values_E, slice, params);
  if (value.defined()) view.copy_(value);
  tensor.mutable_grad() = at::Tensor();
  // Keeps the tensor object, which the network's modules refer to.
  tensor.set_data(view);
  tensor.set_requires_grad(!buffer.frozen);
  if (!buffer.frozen) tensor.mutable_grad() = view_of_slice(buffer.grads_E, slice, params);
}

std::vector<FlatBuffer> layouts_of(const ParamTable& params, const BufferPlan& plan,
                                   const std::vector<bool>& trainable) {
  std::vector<int> num_uses(params.size(), 0);
  for (const auto& members : plan)
    for (const int64_t index : members) ++num_uses.at(static_cast<size_t>(index));
  check(std::ranges::all_of(num_uses, [](int uses) { return uses == 1; }),
        "a plan names each parameter once");
  std::vector<FlatBuffer> buffers;
  for (const auto& members : plan) buffers.push_back(layout_of(params, members, trainable));
  return buffers;
}

int64_t num_elements(const FlatBuffer& buffer) {
  return buffer.slices.back().offset_E + buffer.slices.back().num_elements;
}

at::TensorOptions options_of(const FlatBuffer& buffer, const ParamTable& params) {
  const auto first = static_cast<size_t>(buffer.slices.front().param);
  return params[first].tensor.options().requires_grad(false);
}

}  // namespace

at::Tensor view_of_slice(const at::Tensor& flat_E, const FlatSlice& slice,
                         const ParamTable& params) {
  return flat_E.narrow(0, slice.offset_E, slice.num_elements)
      .view(params[static_cast<size_t>(slice.param)].tensor.sizes());
}

FlatParams::FlatParams(ParamTable& params, const BufferPlan& plan, at::Device device)
    : params_(params), buffers_(layouts_of(params, plan, std::vector<bool>(params.size(), true))) {
  const at::NoGradGuard no_grad;
  fill(buffers_, device);
}

std::vector<FlatBuffer> FlatParams::flatten(const BufferPlan& plan,
                                            const std::vector<bool>& trainable) {
  const at::NoGradGuard no_grad;
  std::vector<FlatBuffer> now = layouts_of(params_, plan, trainable);
  if (memory_ == nullptr)
    fill(now, device());
  else
    fill_shared(now, /*is_reused=*/true);
  // The old buffers go to the caller, who moves its tensors of the same layout.
  std::swap(buffers_, now);
  return now;
}

void FlatParams::move_to(std::unique_ptr<FlatMemory> memory) {
  const at::NoGradGuard no_grad;
  memory_ = std::move(memory);
  fill_shared(buffers_, /*is_reused=*/false);
}

void FlatParams::fill(std::vector<FlatBuffer>& buffers, at::Device device) {
  for (FlatBuffer& buffer : buffers) {
    const at::TensorOptions options = options_of(buffer, params_).device(device);
    buffer.values_E = empty_on_large_pages(num_elements(buffer), options);
    if (!buffer.frozen) buffer.grads_E = zeros_on_large_pages(num_elements(buffer), options);
    for (const FlatSlice& slice : buffer.slices)
      move_in(buffer, slice, params_[static_cast<size_t>(slice.param)].tensor.detach(), params_);
  }
}

/// Fills buffers in shared memory. is_reused: it contains the old values, so that the writing rank
/// needs copies of them.
void FlatParams::fill_shared(std::vector<FlatBuffer>& buffers, bool is_reused) {
  // Undefined on all other ranks.
  std::vector<at::Tensor> values_by_param(params_.size());
  for (size_t i = 0; memory_->is_writer() && i < params_.size(); ++i) {
    const at::Tensor value = params_[i].tensor.detach();
    values_by_param[i] = is_reused ? value.clone() : value;
  }
  // Collective: all ranks have copied what they need from the old layout.
  memory_->begin();
  for (FlatBuffer& buffer : buffers) {
    buffer.grads_by_rank.clear();
    memory_->give(&buffer, num_elements(buffer),
                  c10::typeMetaToScalarType(options_of(buffer, params_).dtype()));
    // Each rank zeroes its own gradients; only the writer fills in values.
    if (!buffer.frozen) buffer.grads_E.zero_();
    for (const FlatSlice& slice : buffer.slices)
      move_in(buffer, slice, values_by_param[static_cast<size_t>(slice.param)], params_);
  }
  // After this no rank reads values that the writer has not written yet.
  memory_->meet();
}

int64_t FlatParams::num_trainable_elements() const {
  int64_t num_elements = 0;
  for (const FlatBuffer& buffer : buffers_)
    if (!buffer.frozen) num_elements += buffer.values_E.numel();
  return num_elements;
}

void FlatParams::zero_grads() {
  std::vector<at::Tensor> parts;
  for (const FlatBuffer& buffer : buffers_) {
    if (buffer.frozen) continue;
    int64_t begin_E = 0;  // start of the range to zero in one call
    const auto zero_until = [&](int64_t end_E) {
      if (begin_E < end_E) parts.push_back(buffer.grads_E.narrow(0, begin_E, end_E - begin_E));
    };
    for (const FlatSlice& slice : buffer.slices) {
      const Param& param = params_[static_cast<size_t>(slice.param)];
      if (param.grad_in_place == nullptr) continue;
      // The layer overwrites its gradient, so zeroing it would be a wasted pass.
      param.grad_in_place->is_stale = true;
      zero_until(slice.offset_E);
      begin_E = slice.offset_E + slice.num_elements;
    }
    zero_until(buffer.grads_E.numel());
  }
  if (!parts.empty()) at::_foreach_zero_(parts);  // on a GPU a few kernels for all of them
}

void FlatParams::require_views() const {
  const auto is_at = [](const at::Tensor& part, const at::Tensor& flat_E, int64_t offset_E) {
    return !part.defined() || part.numel() == 0 ||  // empty tensors have no address
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
          fmt::format(
              "the network's own code replaced the memory of {} or of its gradient (zero_grad() or "
              "load_state_dict(assign=True) in forward do that): updates would not reach it",
              param.name));
    }
}

void FlatParams::zero_unwritten_grads() {
  for (const Param& param : params_) {
    if (param.grad_in_place == nullptr || !param.grad_in_place->is_stale) continue;
    // No layer wrote it: an unused parameter. Its old gradient must not count.
    param.grad_in_place->is_stale = false;
    if (param.tensor.grad().defined()) param.tensor.mutable_grad().zero_();
  }
}

// Averages are dense tensors by parameter. A GPU or another type uses ATen's lerp.

static void follow(const at::Tensor& weight, const at::Tensor& average, double share) {
  if (!average.is_cpu() || average.scalar_type() != at::kFloat) {
    average.lerp_(weight, share);
    return;
  }
  // Own kernels: ATen's round the last elements of each thread differently.
  const float* const weights = weight.const_data_ptr<float>();
  float* const averages = average.mutable_data_ptr<float>();
  const auto follow_part = update_kernels(fastest_simd_path()).follow;
  at::parallel_for(0, average.numel(), kGrain, [=](int64_t begin, int64_t end) {
    follow_part(end - begin, weights + begin, static_cast<float>(share), averages + begin);
  });
}

Ema::Ema(std::optional<double> decay, ParamTable& params) : decay_(decay), params_(params) {
  if (!is_on()) return;
  const at::NoGradGuard no_grad;
  for (const Param& param : params_) {
    const at::Tensor weight = param.tensor.detach();
    averages_.push_back(
        // Large pages: every update streams through the whole average.
        empty_on_large_pages(weight.numel(), weight.options()).view(weight.sizes()).copy_(weight));
  }
}

double Ema::decay_at(double decay, int64_t n) {
  const auto updates = static_cast<double>(n);
  return std::min(decay, (1 + updates) / (10 + updates));
}

bool Ema::begin() {
  if (!is_on() || num_updates_ > 0) return false;
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < params_.size(); ++i) averages_[i].copy_(params_[i].tensor);
  return true;
}

void Ema::update() {
  if (!is_on()) return;
  const at::NoGradGuard no_grad;
  const double share = 1 - decay_at(*decay_, ++num_updates_);
  for (size_t i = 0; i < params_.size(); ++i)
    follow(params_[i].tensor.detach(), averages_[i], share);
}

at::Tensor Ema::of(int64_t param) const {
  return is_on() ? averages_.at(static_cast<size_t>(param)) : at::Tensor();
}

ParamTable Ema::params() const {
  ParamTable table;
  for (size_t i = 0; i < averages_.size(); ++i) {
    table.push_back(params_[i]);
    table.back().tensor = averages_[i];
  }
  return table;
}

StateList Ema::state() {
  StateList list;
  if (!is_on()) return list;
  list.push_back({.key = "_lockstep/ema/num_updates",
                  .tensor = view_of(&num_updates_),
                  .value_if_missing = 0.0});
  for (size_t i = 0; i < params_.size(); ++i)
    list.push_back({.key = "ema/" + slashed(params_[i].name),
                    .tensor = averages_[i],
                    .value_if_missing = 0.0,
                    .steady = true});
  return list;
}

EmaInModel::EmaInModel(Ema* ema) : ema_(ema != nullptr && ema->is_on() ? ema : nullptr) {
  if (ema_ == nullptr) return;
  for (size_t i = 0; i < ema_->params_.size(); ++i) {
    at::Tensor& tensor = ema_->params_[i].tensor;
    weights_.push_back(tensor.detach());
    // Exchanges memory, so that nothing is copied; the destructor exchanges it back.
    tensor.set_data(ema_->averages_[i]);
  }
}

EmaInModel::~EmaInModel() {
  for (size_t i = 0; i < weights_.size(); ++i) ema_->params_[i].tensor.set_data(weights_[i]);
}

}  // namespace lockstep::optim
