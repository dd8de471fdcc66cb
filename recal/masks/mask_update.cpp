#include "recal/masks/mask_update.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/simd/bit_mask.h"
#include "dist/replica_check.h"
#include "recal/masks/magnitude_kernels.h"
#include "recal/masks/magnitude_threshold.h"
#include "recal/masks/structured_masks.h"

// Pruning of the smallest weights: checks of the request, selection, division over the ranks.
namespace lockstep::recal {
namespace {

/// Outputs and inputs of a weight with a transposable mask are multiples of this: GPUs require it.
constexpr int64_t kTransposable = 16;

// These faults come from a recipe, so they have the exit code of a wrong configuration.
Error refusal(const std::string& text) { return {ExitCode::kConfig, "recal", text}; }

// Everything reduces to drop_smallest() over unsigned integers: magnitudes of weights, or scores of
// groups. For N:M it only sees the elements that the pattern allows to prune.

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

// Each weight is assigned to a rank, which prunes it. One all-gather then brings the bits of all
// masks to all ranks.

// Nanoseconds per float32 weight on one core (bench/programs/prune_ops.cpp; Sapphire Rapids,
// AVX-512).
constexpr double kDigest_ns = 0.5;
constexpr double kExchange_ns = 0.25;        ///< 1 bit per weight at 0.5 GB/s
constexpr double kCollectives_ns = 500'000;  ///< latency of a few collectives

/// Time of one mask computation by MaskPattern, in nanoseconds per weight (source: see kDigest_ns).
constexpr std::array kMask_ns = {0.7, 3.4, 2.8, 0.9, 2.4};
constexpr double kTransposable_ns = 12;  ///< 2:4 transposable

int64_t sum_of(std::span<const int64_t> values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

std::vector<int64_t> loads_of(std::span<const int64_t> sizes, const std::vector<int>& ranks,
                              int world_size) {
  std::vector<int64_t> loads(static_cast<size_t>(world_size));
  for (size_t i = 0; i < sizes.size(); ++i) loads[static_cast<size_t>(ranks[i])] += sizes[i];
  return loads;
}

/// Copies each rank's bits to all other ranks. ranks[i] has computed weights[i].
///
/// N: ranks, K: bytes of the largest share. A rank's row holds its masks back to back, in the order
/// of `weights`. Both sides derive the offsets from `ranks`, so no header is sent.
void exchange_bits(std::span<const MaskedWeight> weights, const std::vector<int>& ranks,
                   dist::Communicator& control) {
  std::vector<int64_t> sizes;
  for (const MaskedWeight& weight : weights) sizes.push_back(weight.kept_bits.numel());
  const std::vector<int64_t> loads = loads_of(sizes, ranks, control.world_size());
  const int64_t share_bytes = *std::max_element(loads.begin(), loads.end());
  const at::Tensor mine_K = at::zeros({share_bytes}, at::kByte);
  const at::Tensor all_NK = at::zeros({control.world_size(), share_bytes}, at::kByte);
  int64_t offset = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (ranks[i] != control.rank()) continue;
    mine_K.narrow(0, offset, sizes[i]).copy_(weights[i].kept_bits);
    offset += sizes[i];
  }
  // The control communicator may live on a GPU, while masks are on the CPU.
  const at::Tensor there_NK = all_NK.view(-1).to(control.device());
  control.all_gather(there_NK, mine_K.to(control.device()))->wait();
  const at::Tensor found_NK = there_NK.cpu().view_as(all_NK);
  std::vector<int64_t> offsets(loads.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    int64_t& from = offsets[static_cast<size_t>(ranks[i])];
    weights[i].kept_bits.copy_(found_NK[ranks[i]].narrow(0, from, sizes[i]));
    from += sizes[i];
  }
}

void require_equal_inputs(std::span<const MaskedWeight> weights, dist::Communicator& control) {
  std::vector<dist::NamedTensor> values;
  std::vector<dist::NamedTensor> bits;
  for (const MaskedWeight& weight : weights) {
    values.push_back({weight.name, weight.values});
    bits.push_back({weight.name, weight.kept_bits});
  }
  dist::require_equal_replicas(control, "the weight to be pruned", values);
  dist::require_equal_replicas(control, "the mask in bits", bits);
}

}  // namespace

void check_mask_kind(const MaskKind& kind, std::string_view name, c10::IntArrayRef shape) {
  if (kind.pattern == MaskPattern::kUnstructured) return;
  if (shape.size() < 2)
    throw refusal(
        fmt::format("{} [{}] cannot be pruned by mask_type {}: that needs a weight [outputs, "
                    "inputs, ...]; remove it from params or use mask_type unstructured",
                    name, fmt::join(shape, ", "), kind.text()));
  if (kind.transposable) {
    if (shape.size() == 2 && shape[0] % kTransposable == 0 && shape[1] % kTransposable == 0) return;
    throw refusal(fmt::format(
        "{} [{}] cannot be pruned by mask_type {}: that needs the weight [outputs, inputs] of a "
        "linear layer, both multiples of {}; remove it from params or use mask_type 2:4",
        name, fmt::join(shape, ", "), kind.text(), kTransposable));
  }
  if (kind.pattern != MaskPattern::kNofM || shape[1] % kind.m == 0) return;
  throw refusal(
      fmt::format("{} [{}] cannot be pruned by mask_type {}: its {} inputs are not a multiple of "
                  "{}; remove it from params or use mask_type unstructured or block4",
                  name, fmt::join(shape, ", "), kind.text(), shape[1], kind.m));
}

void check_mask_sparsity(const MaskKind& kind, double sparsity) {
  // Negated, so that NaN is refused too.
  if (!(sparsity >= 0 && sparsity <= 1))
    throw refusal(fmt::format("sparsity {} is not between 0 and 1", sparsity));
  if (kind.pattern != MaskPattern::kNofM) return;
  const double most = 1 - static_cast<double>(kind.n) / static_cast<double>(kind.m);
  if (sparsity <= most + kRoundingOfSparsity) return;
  throw refusal(
      fmt::format("mask_type {} keeps {} of {} weights, so sparsity {} cannot be reached; use {} "
                  "or less, or another mask_type",
                  kind.text(), kind.n, kind.m, sparsity, most));
}

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

std::vector<int> share_out(std::span<const int64_t> num_weights, int world_size) {
  std::vector<size_t> order(num_weights.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // A stable sort, so that equal sizes have the same order on all ranks.
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return num_weights[a] > num_weights[b]; });
  std::vector<int> ranks(num_weights.size());
  std::vector<int64_t> loads(static_cast<size_t>(world_size));
  for (const size_t i : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    ranks[i] = static_cast<int>(least - loads.begin());
    *least += num_weights[i];
  }
  return ranks;
}

bool division_pays(const MaskRule& rule, std::span<const int64_t> num_weights, int world_size) {
  if (rule.global || world_size < 2 || num_weights.size() < 2) return false;
  const auto num_all = static_cast<double>(sum_of(num_weights));
  const std::vector<int64_t> loads =
      loads_of(num_weights, share_out(num_weights, world_size), world_size);
  const auto largest_share = static_cast<double>(*std::max_element(loads.begin(), loads.end()));
  const double ns = rule.kind.transposable ? kTransposable_ns
                                           : kMask_ns.at(static_cast<size_t>(rule.kind.pattern));
  // Left: the slowest rank's masks, plus digests and exchange of all. Right: all masks on one rank.
  return largest_share * ns + num_all * (kDigest_ns + kExchange_ns) + kCollectives_ns <
         num_all * ns;
}

void update_masks_divided(std::span<const MaskedWeight> weights, double sparsity,
                          const MaskRule& rule, dist::Communicator& control) {
  check(!rule.global, "one threshold over several weights is not divided");
  if (weights.empty()) return;
  require_equal_inputs(weights, control);
  std::vector<int64_t> sizes;
  for (const MaskedWeight& weight : weights) sizes.push_back(weight.values.numel());
  const std::vector<int> ranks = share_out(sizes, control.world_size());
  std::vector<MaskedWeight> mine;
  for (size_t i = 0; i < weights.size(); ++i)
    if (ranks[i] == control.rank()) mine.push_back(weights[i]);
  update_masks(mine, sparsity, rule);
  exchange_bits(weights, ranks, control);
}

}  // namespace lockstep::recal
