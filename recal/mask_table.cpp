#include "recal/mask_table.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/params.h"
#include "recal/magnitude_mask.h"

namespace lockstep::recal {
namespace {

int64_t count_pruned(const at::Tensor& kept) {
  return kept.numel() - kept.count_nonzero().item<int64_t>();
}

/// Zero bits are +0 in every float format, so only the width matters.
template <typename Bits>
void zero_pruned(void* weights, const uint8_t* kept, int64_t num_weights) {
  auto* bits = static_cast<Bits*>(weights);
  for (int64_t i = 0; i < num_weights; ++i) bits[i] = kept[i] != 0 ? bits[i] : Bits{0};
}

void zero_pruned(at::Tensor* weight, const at::Tensor& kept) {
  if (!weight->is_cpu() || !weight->is_contiguous()) {
    const at::NoGradGuard no_grad;
    weight->masked_fill_(kept.eq(0), 0);
    return;
  }
  const auto* flags = kept.const_data_ptr<uint8_t>();
  switch (weight->element_size()) {
    case 2:
      return zero_pruned<uint16_t>(weight->mutable_data_ptr(), flags, weight->numel());
    case 4:
      return zero_pruned<uint32_t>(weight->mutable_data_ptr(), flags, weight->numel());
    case 8:
      return zero_pruned<uint64_t>(weight->mutable_data_ptr(), flags, weight->numel());
    default:
      check(false, "a weight's dtype has 2, 4 or 8 bytes");
  }
}

/// Eight flags a byte, lowest index in the lowest bit.
std::string packed_bits(const at::Tensor& cpu_kept) {
  const auto* flags = cpu_kept.const_data_ptr<uint8_t>();
  std::string bytes(static_cast<size_t>((cpu_kept.numel() + 7) / 8), '\0');
  for (int64_t i = 0; i < cpu_kept.numel(); ++i)
    if (flags[i] != 0) bytes[static_cast<size_t>(i / 8)] |= static_cast<char>(1 << (i % 8));
  return bytes;
}

}  // namespace

MaskTable::MaskTable(const ParamTable& params, const std::vector<int64_t>& covered) {
  for (const int64_t index : covered) {
    const Param& param = params[static_cast<size_t>(index)];
    masks_.push_back({index, param.name, param.tensor,
                      at::ones(param.tensor.sizes(),
                               param.tensor.options().dtype(at::kByte).requires_grad(false)),
                      0});
  }
}

Mask& MaskTable::find(int64_t param) {
  const auto mask =
      std::lower_bound(masks_.begin(), masks_.end(), param,
                       [](const Mask& m, int64_t wanted) { return m.param < wanted; });
  check(mask != masks_.end() && mask->param == param, "no mask covers this parameter");
  return *mask;
}

const Mask& MaskTable::of(int64_t param) const { return const_cast<MaskTable*>(this)->find(param); }

bool MaskTable::set_kept(Mask* mask, const at::Tensor& cpu_kept) {
  const int64_t num_before = mask->num_pruned;
  if (!mask->kept.is_same(cpu_kept)) mask->kept.copy_(cpu_kept);
  mask->num_pruned = count_pruned(cpu_kept);
  return mask->num_pruned != num_before;
}

bool MaskTable::prune(int64_t param, double sparsity) {
  Mask& mask = find(param);
  const at::Tensor cpu_kept = mask.kept.cpu();  // the same tensor if it lives there
  prune_smallest(mask.weight.detach().cpu(), sparsity, cpu_kept);
  return set_kept(&mask, cpu_kept);
}

bool MaskTable::keep_zeros(int64_t param) {
  Mask& mask = find(param);
  return set_kept(&mask, mask.kept.mul(mask.weight.detach().ne(0)).cpu());
}

bool MaskTable::release(int64_t param) {
  Mask& mask = find(param);
  mask.kept.fill_(1);
  return std::exchange(mask.num_pruned, 0) != 0;
}

void MaskTable::enforce() {
  for (Mask& mask : masks_)
    if (mask.num_pruned > 0) zero_pruned(&mask.weight, mask.kept);
}

void MaskTable::enforce(int64_t param) {
  Mask& mask = find(param);
  zero_pruned(&mask.weight, mask.kept);
}

std::string MaskTable::digest(int64_t param) const {
  const Mask& mask = of(param);
  const std::string shape = fmt::format("{}\n", fmt::join(mask.kept.sizes(), "x"));
  return Sha256().add(shape).add(packed_bits(mask.kept.cpu())).hex();
}

StateList MaskTable::state() {
  StateList entries;
  for (Mask& mask : masks_)
    entries.push_back({"_lockstep/masks/" + slashed(mask.name), mask.kept, nullptr,
                       /*value_if_missing=*/1.0});
  return entries;
}

void MaskTable::recount() {
  for (Mask& mask : masks_) mask.num_pruned = count_pruned(mask.kept);
}

}  // namespace lockstep::recal
