#include "recal/mask_update.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/bit_mask.h"
#include "base/error.h"
#include "recal/magnitude_threshold.h"
#include "recal/mask_groups.h"
#include "recal/mask_n_of_m.h"

namespace lockstep::recal {
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

/// Drops the smallest kept items until num_wanted are pruned, with those that are pruned already.
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
  std::vector<MagnitudePart<uint64_t>> parts;
  for (GroupScores& group : groups)
    parts.push_back({reinterpret_cast<const uint64_t*>(group.scores.data()), group.kept.data(),
                     static_cast<int64_t>(group.scores.size())});
  drop_until(parts, num_to_prune(sparsity, num_groups));
  for (size_t i = 0; i < weights.size(); ++i)
    drop_groups(kind, weights[i].values.sizes(), groups[i].kept, bits_of(weights[i]));
}

/// kept without the items that are in `before` and no more in `after`.
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
  std::vector<std::vector<uint8_t>> left;
  for (const Prunable& one : prunable) left.push_back(one.bits);
  std::vector<MagnitudePart<Bits>> parts;
  for (size_t i = 0; i < weights.size(); ++i)
    parts.push_back(part_of<Bits>(weights[i], left[i].data()));
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

/// Under one threshold. All values are of one type.
void prune_together(std::span<const MaskedWeight> weights, double sparsity, const MaskKind& kind) {
  if (weights.empty()) return;
  if (kind.pattern != MaskPattern::kUnstructured && kind.pattern != MaskPattern::kNofM)
    return prune_groups(weights, sparsity, kind);
  switch (weights.front().values.element_size()) {
    case 2:
      return prune_by_magnitude<uint16_t>(weights, sparsity, kind);
    case 4:
      return prune_by_magnitude<uint32_t>(weights, sparsity, kind);
    default:
      return prune_by_magnitude<uint64_t>(weights, sparsity, kind);
  }
}

std::vector<MaskedWeight> of_one_type(std::span<const MaskedWeight> weights) {
  std::vector<MaskedWeight> result(weights.begin(), weights.end());
  const bool differ = std::any_of(result.begin(), result.end(), [&](const MaskedWeight& weight) {
    return weight.values.scalar_type() != result.front().values.scalar_type();
  });
  if (!differ) return result;
  for (MaskedWeight& weight : result) {
    const at::Tensor wide = weight.values.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
    // One NaN for all: its bits after a conversion depend on the type it came from.
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

int64_t num_to_prune(double sparsity, int64_t num_things) {
  return std::llround(sparsity * static_cast<double>(num_things));
}

void update_masks(std::span<const MaskedWeight> weights, double sparsity, const MaskRule& rule) {
  for (const MaskedWeight& weight : weights) check_usable(weight);
  if (rule.global) return prune_together(of_one_type(weights), sparsity, rule.kind);
  for (size_t i = 0; i < weights.size(); ++i)
    prune_together(weights.subspan(i, 1), sparsity, rule.kind);
}

}  // namespace lockstep::recal
