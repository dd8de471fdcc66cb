#include "recal/masks/mask_table.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/simd/bit_mask.h"
#include "dist/replica_check.h"
#include "dist/tensor_math.h"

// Masks of all parameters of a recipe, and functions for the bits of one mask.
namespace lockstep::recal {
// Masks are bits on the CPU; weights may have any device and layout. The functions below convert
// between them.
namespace {

int item_bytes(const at::Tensor& values) { return static_cast<int>(values.element_size()); }

const uint8_t* bits_of(const at::Tensor& kept_bits, const at::Tensor& values) {
  check(kept_bits.is_cpu() && kept_bits.is_contiguous() &&
            kept_bits.numel() == num_mask_bytes(values.numel()),
        "a mask has a bit for each value");
  return kept_bits.const_data_ptr<uint8_t>();
}

/// Returns the values in row-major order on the CPU: the same memory if possible, else a copy.
at::Tensor row_major_on_cpu(const at::Tensor& values) { return values.detach().cpu().contiguous(); }

at::Tensor nonzero_bits(const at::Tensor& values) {
  const at::Tensor host = row_major_on_cpu(values);
  const at::Tensor bits = at::zeros({num_mask_bytes(values.numel())}, at::kByte);
  keep_nonzero(host.const_data_ptr(), host.numel(), item_bytes(host),
               bits.mutable_data_ptr<uint8_t>());
  return bits;
}

/// Zeroes the pruned values, in place, if the mask prunes any. Values on a device or with other
/// strides use the mask's copy there. If it is undefined, one is made.
void zero_pruned_values(const Mask& mask, const at::Tensor& values) {
  if (mask.num_pruned == 0) return;
  // Fast path: reads the bits directly and allocates nothing. Everything else needs a bool mask.
  if (values.is_cpu() && values.is_contiguous())
    return zero_pruned(values.mutable_data_ptr(), bits_of(mask.kept_bits, values), values.numel(),
                       item_bytes(values));
  const at::NoGradGuard no_grad;
  values.detach().masked_fill_(
      mask.device_mask.defined()
          ? mask.device_mask
          : kept_flags(mask.kept_bits, values.sizes()).eq(0).to(values.device()),
      0);
}

/// Returns the number of pruned values that are not zero.
int64_t count_pruned_nonzeros(const at::Tensor& values, const at::Tensor& kept_bits) {
  // Nonzero and not kept: such a weight grew back after it was pruned.
  const at::Tensor regrown = nonzero_bits(values).bitwise_and_(kept_bits.bitwise_not());
  return count_kept(bits_of(regrown, values), values.numel());
}

// The bits on the CPU are the masks. Counts and copies on a device are derived from them by
// update(), which every change of bits must call.

void check_rule(const MaskRule& rule, double sparsity, const Mask& mask) {
  check_mask_kind(rule.kind, mask.name, mask.weight.sizes());
  check_mask_sparsity(rule.kind, sparsity);
}

}  // namespace

at::Tensor new_kept_bits(int64_t num_items) {
  const at::Tensor bits = at::empty({num_mask_bytes(num_items)}, at::kByte);
  keep_all(bits.mutable_data_ptr<uint8_t>(), num_items);
  return bits;
}

at::Tensor kept_flags(const at::Tensor& kept_bits, at::IntArrayRef sizes) {
  const at::Tensor flags = at::empty(sizes, at::kByte);
  const uint8_t* bits = bits_of(kept_bits, flags);
  auto* flag = flags.mutable_data_ptr<uint8_t>();
  for (int64_t i = 0; i < flags.numel(); ++i) flag[i] = is_kept(bits, i) ? 1 : 0;
  return flags;
}

MaskTable::MaskTable(const ParamTable& params, const std::vector<int64_t>& covered, MaskWork work)
    : work_(work) {
  for (const int64_t index : covered) {
    const Param& param = params[static_cast<size_t>(index)];
    masks_.push_back({index, param.name, param.tensor, new_kept_bits(param.tensor.numel()), {}, 0});
  }
}

Mask& MaskTable::find(int64_t param) {
  // masks_ is sorted: the constructor got ascending indexes.
  const auto mask =
      std::lower_bound(masks_.begin(), masks_.end(), param,
                       [](const Mask& m, int64_t wanted) { return m.param < wanted; });
  check(mask != masks_.end() && mask->param == param, "no mask covers this parameter");
  return *mask;
}

const Mask& MaskTable::of(int64_t param) const { return const_cast<MaskTable*>(this)->find(param); }

bool MaskTable::covers(int64_t param) const {
  return std::any_of(masks_.begin(), masks_.end(),
                     [=](const Mask& mask) { return mask.param == param; });
}

bool MaskTable::update(Mask* mask) {
  const int64_t num_weights = mask->weight.numel();
  auto* bits = mask->kept_bits.mutable_data_ptr<uint8_t>();
  // A restored file may have other bits after the end, which counts must not see.
  clear_behind_end(bits, num_weights);
  const int64_t num_before =
      std::exchange(mask->num_pruned, num_weights - count_kept(bits, num_weights));
  if (mask->weight.is_cpu() || mask->num_pruned == 0)
    mask->device_mask.reset();
  else
    mask->device_mask =
        kept_flags(mask->kept_bits, mask->weight.sizes()).eq(0).to(mask->weight.device());
  // A count is enough to detect a change: one action only prunes or only keeps weights.
  return mask->num_pruned != num_before;
}

std::vector<int64_t> MaskTable::prune(const std::vector<int64_t>& params, double sparsity,
                                      const MaskRule& rule, dist::Communicator& control,
                                      const std::vector<at::Tensor>& scores) {
  std::vector<MaskedWeight> weights;
  std::vector<int64_t> sizes;
  for (const int64_t param : params) {
    const Mask& mask = of(param);
    check_rule(rule, sparsity, mask);
    const at::Tensor& ordered = scores.empty() ? mask.weight : scores[weights.size()];
    weights.push_back({mask.name, row_major_on_cpu(ordered), mask.kept_bits});
    sizes.push_back(mask.weight.numel());
  }
  // All ranks decide alike: the rule, the sizes and the world size are equal everywhere.
  const bool divided = work_ == MaskWork::kDivided ? !rule.global
                       : work_ == MaskWork::kBySize
                           ? division_pays(rule, sizes, control.world_size())
                           : false;
  if (divided)
    update_masks_divided(weights, sparsity, rule, control);
  else
    update_masks(weights, sparsity, rule);
  std::vector<int64_t> changed;
  for (const int64_t param : params)
    if (update(&find(param))) changed.push_back(param);
  return changed;
}

bool MaskTable::keep_zeros(int64_t param) {
  Mask& mask = find(param);
  mask.kept_bits.bitwise_and_(nonzero_bits(mask.weight));
  return update(&mask);
}

bool MaskTable::release(int64_t param) {
  Mask& mask = find(param);
  keep_all(mask.kept_bits.mutable_data_ptr<uint8_t>(), mask.weight.numel());
  return update(&mask);
}

void MaskTable::enforce() {
  // After drop() the counts stay, but there are no bits to enforce.
  if (dropped_) return;
  for (const Mask& mask : masks_) zero_pruned_values(mask, mask.weight);
}

void MaskTable::enforce(int64_t param) { zero_pruned_values(of(param), of(param).weight); }

void MaskTable::enforce_gradients() {
  for (const Mask& mask : masks_)
    if (mask.num_pruned > 0 && mask.weight.grad().defined())
      zero_pruned_values(mask, mask.weight.grad());
}

void MaskTable::zero_pruned(int64_t param, const at::Tensor& values) const {
  zero_pruned_values(of(param), values);
}

void MaskTable::drop() {
  for (Mask& mask : masks_) {
    mask.kept_bits.reset();
    mask.device_mask.reset();
  }
  dropped_ = true;
}

int64_t MaskTable::count_revived() const {
  int64_t num_revived = 0;
  for (const Mask& mask : masks_)
    if (mask.num_pruned > 0) num_revived += count_pruned_nonzeros(mask.weight, mask.kept_bits);
  return num_revived;
}

int64_t MaskTable::num_pruned() const {
  int64_t num = 0;
  for (const Mask& mask : masks_) num += mask.num_pruned;
  return num;
}

void MaskTable::require_equal(std::string_view what, const std::vector<int64_t>& params,
                              dist::Communicator& control) const {
  std::string digests;
  // The names are part of the digest: ranks whose masks are in another order must not agree.
  for (const int64_t param : params)
    digests += fmt::format("{} {:x}\n", of(param).name, dist::tensor_digest(of(param).kept_bits));
  if (dist::all_equal(control, fnv1a64(digests))) return;
  // Slow path: compares element by element, to name the first difference.
  std::vector<dist::NamedTensor> flags;
  for (const int64_t param : params)
    flags.push_back({of(param).name, kept_flags(of(param).kept_bits, of(param).weight.sizes())});
  dist::require_equal_replicas(control, what, flags);
  check(false, "digests differ of equal masks");
}

StateList MaskTable::state() {
  StateList entries;
  if (dropped_) return entries;
  for (Mask& mask : masks_)
    entries.push_back({.key = "_lockstep/masks/" + slashed(mask.name),
                       .tensor = mask.kept_bits,
                       .value_if_missing = 255.0,
                       .steady = true});
  return entries;
}

void MaskTable::recount() {
  for (Mask& mask : masks_) update(&mask);
}

}  // namespace lockstep::recal
