#include "recal/masks/distributed_mask_update.h"

#include <algorithm>
#include <numeric>

#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "dist/replica/replica_check.h"

namespace lockstep::recal {
// Each weight is assigned to a rank, which prunes it. One all-gather then brings the bits of all
// masks to all ranks.
namespace {

// Nanoseconds per float32 weight on one core (bench/programs/prune_ops.cpp; Sapphire Rapids,
// AVX-512).
constexpr double kDigest_ns = 0.5;
constexpr double kExchange_ns = 0.25;        ///< 1 bit per weight at 0.5 GB/s
constexpr double kCollectives_ns = 500'000;  ///< latency of a few collectives

/// Time of one mask computation, in nanoseconds per weight (source: see kDigest_ns).
double mask_ns(MaskPattern pattern) {
  switch (pattern) {
    case MaskPattern::kUnstructured:
      return 0.7;
    case MaskPattern::kBlock:
      return 3.4;
    case MaskPattern::kNofM:
      return 2.8;
    case MaskPattern::kFilter:
      return 0.9;
    case MaskPattern::kChannel:
      return 2.4;
  }
  return 0;
}

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
  const double ns = mask_ns(rule.kind.pattern);
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
