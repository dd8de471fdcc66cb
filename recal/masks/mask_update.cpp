#include "recal/masks/mask_update.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/bits/bit_mask.h"
#include "base/error.h"
#include "recal/masks/magnitude_kernels.h"
#include "recal/masks/magnitude_threshold.h"
#include "recal/masks/mask_groups.h"
#include "recal/masks/mask_n_of_m.h"

namespace lockstep::recal {
// Everything reduces to drop_smallest() over unsigned integers: magnitudes of weights, or scores of
// groups. For N:M it only sees the elements that the pattern allows to prune.
namespace {

uint8_t* bits_of(const MaskedWeight& weight) {
  return weight.kept_bits.mutable_data_ptr<uint8_t>();
}

int64_t num_weights(std::span<const MaskedWeight> weights) {
  int64_t num = 0;
  for (const MaskedWeight& weight : weights) num += weight.values.numel();
  return num;
}

template <typename Bits>
MagnitudePart<Bits> part_of(const MaskedWeight& weight, uint8_t* kept) {
  return {static_cast<const Bits*>(weight.values.const_data_ptr()), kept, weight.values.numel()};
}

/// Drops the smallest kept elements until num_wanted are pruned, including those pruned before.
template <typename Bits>
void drop_until(const std::vector<MagnitudePart<Bits>>& parts, int64_t num_wanted) {
  int64_t num_pruned = 0;
  for (const MagnitudePart<Bits>& part : parts)
    num_pruned += part.num_items - count_kept(part.kept, part.num_items);
  if (num_wanted > num_pruned) drop_smallest<Bits>(std::span(parts), num_wanted - num_pruned);
}

template <typename Bits>
void prune_weights(std::span<const MaskedWeight> weights, double sparsity) {
  std::vector<MagnitudePart<Bits>> parts;
  for (const MaskedWeight& weight : weights)
    parts.push_back(part_of<Bits>(weight, bits_of(weight)));
  drop_until(parts, num_to_prune(sparsity, num_weights(weights)));
}

void prune_groups(std::span<const MaskedWeight> weights, double sparsity, const MaskKind& kind) {
  std::vector<GroupScores> groups;
  int64_t num_groups = 0;
  for (const MaskedWeight& weight : weights) {
    groups.push_back(score_groups(kind, weight.values, bits_of(weight)));
    num_groups += static_cast<int64_t>(groups.back().scores.size());
  }
  // Scores are doubles without a sign, so their bits are valid magnitudes for the kernels.
  std::vector<MagnitudePart<uint64_t>> parts;
  for (GroupScores& group : groups)
    parts.push_back({reinterpret_cast<const uint64_t*>(group.scores.data()), group.kept.data(),
                     static_cast<int64_t>(group.scores.size())});
  drop_until(parts, num_to_prune(sparsity, num_groups));
  for (size_t i = 0; i < weights.size(); ++i)
    drop_groups(kind, weights[i].values.sizes(), groups[i].kept, bits_of(weights[i]));
}

/// Drops the elements that are in `before` but no longer in `after`.
void drop_lost(const std::vector<uint8_t>& before, const std::vector<uint8_t>& after,
               uint8_t* kept) {
  for (size_t i = 0; i < before.size(); ++i)
    kept[i] = static_cast<uint8_t>(kept[i] & ~(before[i] ^ after[i]));
}

template <typename Bits>
void prune_n_of_m(std::span<const MaskedWeight> weights, double sparsity, const MaskKind& kind) {
  std::vector<Prunable> prunable;
  int64_t num_pruned = 0;
  int64_t num_prunable = 0;
  for (const MaskedWeight& weight : weights) {
    prunable.push_back(prunable_n_of_m(kind, weight.values, bits_of(weight)));
    num_pruned += prunable.back().num_pruned;
    num_prunable += count_kept(prunable.back().bits.data(), weight.values.numel());
  }
  // drop_smallest() works on copies: the bits of `prunable` also say what is not a candidate.
  std::vector<std::vector<uint8_t>> left;
  for (const Prunable& one : prunable) left.push_back(one.bits);
  std::vector<MagnitudePart<Bits>> parts;
  for (size_t i = 0; i < weights.size(); ++i)
    parts.push_back(part_of<Bits>(weights[i], left[i].data()));
  // Elements already pruned count towards the sparsity. The clamp covers a rule that changed during
  // the run.
  const int64_t num_wanted = num_to_prune(sparsity, num_weights(weights)) - num_pruned;
  drop_smallest<Bits>(std::span<const MagnitudePart<Bits>>(parts),
                      std::clamp<int64_t>(num_wanted, 0, num_prunable));
  for (size_t i = 0; i < weights.size(); ++i)
    drop_lost(prunable[i].bits, left[i], bits_of(weights[i]));
}

template <typename Bits>
void prune_by_magnitude(std::span<const MaskedWeight> weights, double sparsity,
                        const MaskKind& kind) {
  if (kind.pattern == MaskPattern::kNofM) return prune_n_of_m<Bits>(weights, sparsity, kind);
  prune_weights<Bits>(weights, sparsity);
}

bool is_of_groups(const MaskKind& kind) {
  return kind.pattern != MaskPattern::kUnstructured && kind.pattern != MaskPattern::kNofM;
}

/// Prunes under one threshold. All values must have the same type.
void prune_together(std::span<const MaskedWeight> weights, double sparsity, const MaskKind& kind) {
  if (weights.empty()) return;
  if (is_of_groups(kind)) return prune_groups(weights, sparsity, kind);
  switch (weights.front().values.element_size()) {
    case 2:
      return prune_by_magnitude<uint16_t>(weights, sparsity, kind);
    case 4:
      return prune_by_magnitude<uint32_t>(weights, sparsity, kind);
    default:
      return prune_by_magnitude<uint64_t>(weights, sparsity, kind);
  }
}

void keep(uint8_t* bits, int64_t item) {
  bits[item >> 3] = static_cast<uint8_t>(bits[item >> 3] | (1U << (item & 7)));
}

/// Keeps the largest of the groups that were kept before; on ties the last.
void keep_largest(const MaskedWeight& weight, const MaskKind& kind,
                  const std::vector<uint8_t>& before) {
  GroupScores groups = score_groups(kind, weight.values, before.data());
  // The bits of doubles without a sign grow with the value, NaN on top: the order of selection.
  const auto* scores = reinterpret_cast<const uint64_t*>(groups.scores.data());
  int64_t largest = -1;
  for (int64_t i = 0; i < static_cast<int64_t>(groups.scores.size()); ++i)
    if (is_kept(groups.kept.data(), i) && (largest < 0 || scores[i] >= scores[largest]))
      largest = i;
  std::fill(groups.kept.begin(), groups.kept.end(), uint8_t{0});
  keep(groups.kept.data(), largest);
  std::copy(before.begin(), before.end(), bits_of(weight));
  drop_groups(kind, weight.values.sizes(), groups.kept, bits_of(weight));
}

/// True if these counts may prune all groups of some weight.
bool may_take_all(std::span<const MaskedWeight> weights, double sparsity, const MaskRule& rule) {
  if (sparsity >= 1 || !is_of_groups(rule.kind)) return false;
  if (rule.global && weights.size() > 1) return true;
  return std::any_of(weights.begin(), weights.end(), [&](const MaskedWeight& weight) {
    const int64_t num_groups = rule.kind.num_prunable(weight.values.sizes());
    return num_to_prune(sparsity, num_groups) >= num_groups;
  });
}

std::vector<MaskedWeight> of_one_type(std::span<const MaskedWeight> weights) {
  std::vector<MaskedWeight> result(weights.begin(), weights.end());
  const bool differ = std::any_of(result.begin(), result.end(), [&](const MaskedWeight& weight) {
    return weight.values.scalar_type() != result.front().values.scalar_type();
  });
  if (!differ) return result;
  for (MaskedWeight& weight : result) {
    const at::Tensor wide = weight.values.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
    // One canonical NaN: after a conversion the bits of a NaN depend on the source type.
    weight.values = wide.masked_fill_(wide.isnan(), std::numeric_limits<double>::quiet_NaN());
  }
  return result;
}

void check_usable(const MaskedWeight& weight) {
  const at::ScalarType type = weight.values.scalar_type();
  check(
      weight.values.is_cpu() && weight.values.is_contiguous() &&
          (type == at::kFloat || type == at::kDouble || type == at::kHalf || type == at::kBFloat16),
      "a mask is computed of contiguous floats on the CPU");
  check(weight.kept_bits.numel() == num_mask_bytes(weight.values.numel()),
        "a mask has a bit for each weight");
}

}  // namespace

void update_masks(std::span<const MaskedWeight> weights, double sparsity, const MaskRule& rule) {
  for (const MaskedWeight& weight : weights) check_usable(weight);
  // A copy of the bits is only needed if some weight may lose its last group.
  std::vector<std::vector<uint8_t>> before;
  if (may_take_all(weights, sparsity, rule))
    for (const MaskedWeight& weight : weights)
      before.emplace_back(bits_of(weight), bits_of(weight) + weight.kept_bits.numel());
  if (rule.global) {
    prune_together(of_one_type(weights), sparsity, rule.kind);
  } else {
    for (size_t i = 0; i < weights.size(); ++i)
      prune_together(weights.subspan(i, 1), sparsity, rule.kind);
  }
  for (size_t i = 0; i < before.size(); ++i) {
    const int64_t num = weights[i].values.numel();
    if (count_kept(bits_of(weights[i]), num) == 0 && count_kept(before[i].data(), num) > 0)
      keep_largest(weights[i], rule.kind, before[i]);
  }
}

}  // namespace lockstep::recal
