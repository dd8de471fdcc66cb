#include "recal/masks/mask_groups.h"

#include <cmath>
#include <limits>
#include <utility>

#include "base/bits/bit_mask.h"
#include "base/error.h"
#include "recal/masks/group_runs.h"

namespace lockstep::recal {
// Two passes: sums over the runs of group_runs.h, then division by the number of members. Sums are
// added in row-major order by one thread: the order fixes the bits, on which ranks must agree.
namespace {

struct Sums {
  std::vector<double> sums;
  std::vector<uint8_t> any_kept;  ///< one byte per group: faster to update than bits
};

/// Adds a run's elements to one group, or (kSteps) each to the next group.
template <bool kSteps, typename Float>
void add_run(const Float* items, const uint8_t* kept, int64_t first_item, int64_t num_items,
             double* sums, uint8_t* any_kept) {
  for (int64_t i = 0; i < num_items; ++i) {
    const bool counts = is_kept(kept, first_item + i);
    const int64_t group = kSteps ? i : 0;
    sums[group] += counts ? std::fabs(static_cast<double>(items[first_item + i])) : 0.0;
    any_kept[group] = static_cast<uint8_t>(any_kept[group] | static_cast<uint8_t>(counts));
  }
}

template <bool kSteps, typename Float>
void add_runs(const GroupRuns& runs, const Float* items, const uint8_t* kept, Sums* out) {
  double* sums = out->sums.data();
  uint8_t* any_kept = out->any_kept.data();
  for_each_run(runs, [=](int64_t first_item, int64_t num_items, int64_t group) {
    if (kSteps)
      return add_run<true>(items, kept, first_item, num_items, sums + group, any_kept + group);
    // Local copies stay in registers; any_kept might alias sums for the compiler.
    double sum = sums[group];
    uint8_t any = any_kept[group];
    add_run<false>(items, kept, first_item, num_items, &sum, &any);
    sums[group] = sum;
    any_kept[group] = any;
  });
}

template <typename Float>
Sums sums_of(const GroupRuns& runs, const at::Tensor& weight, const uint8_t* kept) {
  const auto num_groups = static_cast<size_t>(runs.num_groups);
  Sums sums{std::vector<double>(num_groups), std::vector<uint8_t>(num_groups)};
  const auto* items = weight.const_data_ptr<Float>();
  if (runs.steps)
    add_runs<true>(runs, items, kept, &sums);
  else
    add_runs<false>(runs, items, kept, &sums);
  return sums;
}

Sums sums_of(const GroupRuns& runs, const at::Tensor& weight, const uint8_t* kept) {
  // Each type is read directly: converting a whole weight would copy it.
  switch (weight.scalar_type()) {
    case at::kFloat:
      return sums_of<float>(runs, weight, kept);
    case at::kDouble:
      return sums_of<double>(runs, weight, kept);
    case at::kHalf:
      return sums_of<at::Half>(runs, weight, kept);
    default:
      check(weight.scalar_type() == at::kBFloat16, "a weight is of a float type");
      return sums_of<at::BFloat16>(runs, weight, kept);
  }
}

/// Mean with a canonical NaN: the bits of a sum of NaNs depend on the processor.
double mean(double sum, int64_t num_members) {
  return std::isnan(sum) ? std::numeric_limits<double>::quiet_NaN()
                         : sum / static_cast<double>(num_members);
}

void make_means(const GroupRuns& runs, std::vector<double>* sums) {
  const int64_t num_full = runs.groups_in_row - runs.num_short;
  for (int64_t row = 0; row < runs.num_groups; row += runs.groups_in_row)
    for (int64_t i = 0; i < runs.groups_in_row; ++i) {
      double& score = (*sums)[static_cast<size_t>(row + i)];
      score = mean(score, i < num_full ? runs.group_items : runs.short_group_items);
    }
}

/// Packs flags of one byte each into bits.
std::vector<uint8_t> packed(std::vector<uint8_t> flags) {
  const auto num_bytes = static_cast<size_t>(num_mask_bytes(static_cast<int64_t>(flags.size())));
  flags.resize(8 * num_bytes);
  std::vector<uint8_t> bits(num_bytes);
  for (size_t i = 0; i < num_bytes; ++i) {
    unsigned byte = 0;
    for (size_t j = 0; j < 8; ++j) byte |= static_cast<unsigned>(flags[8 * i + j]) << j;
    bits[i] = static_cast<uint8_t>(byte);
  }
  return bits;
}

}  // namespace

GroupScores score_groups(const MaskKind& kind, const at::Tensor& weight, const uint8_t* kept) {
  const GroupRuns runs = group_runs(kind, WeightShape(weight.sizes()));
  Sums sums = sums_of(runs, weight, kept);
  make_means(runs, &sums.sums);
  return {std::move(sums.sums), packed(std::move(sums.any_kept))};
}

void drop_groups(const MaskKind& kind, c10::IntArrayRef sizes,
                 const std::vector<uint8_t>& groups_kept, uint8_t* kept) {
  const GroupRuns runs = group_runs(kind, WeightShape(sizes));
  const uint8_t* groups = groups_kept.data();
  for_each_run(runs, [&](int64_t first_item, int64_t num_items, int64_t group) {
    if (!runs.steps) {
      if (!is_kept(groups, group)) drop_range(kept, first_item, num_items);
      return;
    }
    for (int64_t i = 0; i < num_items; ++i)
      if (!is_kept(groups, group + i)) drop(kept, first_item + i);
  });
}

}  // namespace lockstep::recal
