#include "recal/masks/structured_masks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include <c10/util/ArrayRef.h>

#include "base/error.h"
#include "base/simd/bit_mask.h"
#include "recal/masks/magnitude_kernels.h"

// Structured masks: the groups of a weight in memory, their scores, and N:M patterns.
namespace lockstep::recal {

namespace {

/// Shape of a weight as masks see it, row-major: O outputs, I inputs, R kernel positions (1 for a
/// linear layer). Weight (o, i, r) is element (o * I + i) * R + r.
struct WeightShape {
  int64_t num_outputs = 1;
  int64_t num_inputs = 1;
  int64_t num_positions = 1;

  explicit WeightShape(c10::IntArrayRef sizes) {
    if (!sizes.empty()) num_outputs = sizes[0];
    if (sizes.size() > 1) num_inputs = sizes[1];
    for (size_t i = 2; i < sizes.size(); ++i) num_positions *= sizes[i];
  }
};

/// Mapping from the elements of a weight, read in row-major order, to groups. The elements form
/// runs of neighbours. A run belongs to one group, or (steps) each element to the next group.
struct GroupRuns {
  int64_t num_groups = 0;
  int64_t num_rows = 0;
  int64_t row_items = 0;        ///< elements of a row
  int64_t run_items = 0;        ///< elements of a run; the last run of a row may have fewer
  bool steps = false;           ///< neighbours in a run belong to neighbouring groups
  int64_t groups_per_row = 0;   ///< increase of the first group from row to row
  int64_t runs_per_group = 1;   ///< consecutive runs of a row with the same groups
  int64_t groups_per_step = 1;  ///< increase of the first group after these runs

  /// Number of members of a group. The last num_short groups of each row have short_group_items.
  int64_t group_items = 0, short_group_items = 0;
  int64_t groups_in_row = 1, num_short = 0;
};

/// Calls visit(first element, number of elements, first group) for each run, in row-major order.
template <typename Visit>
void for_each_run(const GroupRuns& runs, const Visit& visit) {
  for (int64_t row = 0; row < runs.num_rows; ++row) {
    int64_t group = row * runs.groups_per_row;
    int64_t num_left = runs.runs_per_group;
    for (int64_t item = 0; item < runs.row_items; item += runs.run_items) {
      visit(row * runs.row_items + item, std::min(runs.run_items, runs.row_items - item), group);
      if (--num_left > 0) continue;
      num_left = runs.runs_per_group;
      group += runs.groups_per_step;
    }
  }
}

// Weight (o, i, r) is element (o * I + i) * R + r (WeightShape), so one weight row is I * R
// elements. A linear layer has R = 1.
//
// filter   group o: a row is one run.
// channel  group i: with R = 1 neighbouring elements step through the groups; otherwise a run is
//          the R positions of one input. groups_per_row is 0, since every row has the same groups.
// block    group (o, i / m, r): with R = 1 a run is a block; otherwise m runs of R positions belong
//          to the same R groups. The last block of a row is short if m does not divide I.

GroupRuns filter_runs(const WeightShape& shape) {
  const int64_t row_items = shape.num_inputs * shape.num_positions;
  return {.num_groups = shape.num_outputs,
          .num_rows = shape.num_outputs,
          .row_items = row_items,
          .run_items = row_items,
          .groups_per_row = 1,
          .group_items = row_items,
          .groups_in_row = shape.num_outputs};
}

GroupRuns channel_runs(const WeightShape& shape) {
  const bool linear = shape.num_positions == 1;
  return {.num_groups = shape.num_inputs,
          .num_rows = shape.num_outputs,
          .row_items = shape.num_inputs * shape.num_positions,
          .run_items = linear ? shape.num_inputs : shape.num_positions,
          .steps = linear,
          .group_items = shape.num_outputs * shape.num_positions,
          .groups_in_row = shape.num_inputs};
}

GroupRuns block_runs(const WeightShape& shape, int64_t block) {
  const bool linear = shape.num_positions == 1;
  const int64_t groups_in_row = (shape.num_inputs + block - 1) / block * shape.num_positions;
  const int64_t num_last = shape.num_inputs % block;
  return {.num_groups = shape.num_outputs * groups_in_row,
          .num_rows = shape.num_outputs,
          .row_items = shape.num_inputs * shape.num_positions,
          .run_items = linear ? block : shape.num_positions,
          .steps = !linear,
          .groups_per_row = groups_in_row,
          .runs_per_group = linear ? 1 : block,
          .groups_per_step = linear ? 1 : shape.num_positions,
          .group_items = block,
          .short_group_items = num_last,
          .groups_in_row = groups_in_row,
          .num_short = num_last > 0 ? shape.num_positions : 0};
}

/// Returns the mapping for a block, filter or channel mask.
GroupRuns group_runs(const MaskKind& kind, const WeightShape& shape) {
  if (kind.pattern == MaskPattern::kFilter) return filter_runs(shape);
  if (kind.pattern == MaskPattern::kChannel) return channel_runs(shape);
  check(kind.pattern == MaskPattern::kBlock && kind.m > 0, "a mask kind without groups");
  return block_runs(shape, kind.m);
}

// Two passes: sums over the runs of group_runs(), then division by the number of members. Sums are
// added in row-major order by one thread: the order fixes the bits, on which ranks must agree.

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

/// A group's selection is one 64-bit word.
constexpr int64_t kMaxGroup = 64;

/// Returns the bits of the first num_first of m elements in the order (key, index). Pruned elements
/// have key -1 and are left out. kM: upper limit of m. The loops are unrolled: with constant m all
/// indexes are constants, which is 1.6 times as fast for 2:4.
template <int kM, typename Key>
uint64_t first_of(const Key* keys, int64_t m, int64_t num_first) {
  // A rank sort: num_before[i] counts the elements that come before i.
  std::array<int64_t, kM> num_before{};
#pragma GCC unroll 8
  for (int64_t i = 1; i < m; ++i)
#pragma GCC unroll 8
    for (int64_t j = 0; j < i; ++j) {
      const auto j_is_first = static_cast<int64_t>(keys[j] <= keys[i]);
      num_before[static_cast<size_t>(i)] += j_is_first;
      num_before[static_cast<size_t>(j)] += 1 - j_is_first;
    }
  uint64_t first = 0;
#pragma GCC unroll 8
  for (int64_t i = 0; i < m; ++i)
    first |=
        static_cast<uint64_t>((num_before[static_cast<size_t>(i)] < num_first) & (keys[i] >= 0))
        << i;
  return first;
}

template <typename Bits>
struct Walk {
  using Key = std::make_signed_t<Bits>;

  const Bits* items;
  const uint8_t* kept;
  WeightShape shape;
  int64_t m;
  int64_t num_first;

  /// Handles the group that begins at this element; its neighbours are num_positions apart. kM: m
  /// as a constant, or 0 if m is only known at run time.
  template <int kM>
  void add_group(int64_t first_item, Prunable* out) const {
    const int64_t num_neighbours = kM > 0 ? kM : m;
    constexpr int kMost = kM == 0 ? static_cast<int>(kMaxGroup) : kM;
    std::array<Key, kMost> keys;
    int64_t num_kept = 0;
#pragma GCC unroll 8
    for (int64_t j = 0; j < num_neighbours; ++j) {
      const int64_t item = first_item + j * shape.num_positions;
      const bool is_here = is_kept(kept, item);
      keys[static_cast<size_t>(j)] = is_here ? static_cast<Key>(magnitude(items[item])) : Key{-1};
      num_kept += static_cast<int64_t>(is_here);
    }
    // Pruned elements have the smallest keys, so they already take places among the num_first.
    out->num_pruned += std::min(num_neighbours - num_kept, num_first);
    put(first_of<kMost>(keys.data(), num_neighbours, num_first), first_item, out->bits.data());
  }

  /// Sets the bits of a group's chosen neighbours.
  void put(uint64_t chosen, int64_t first_item, uint8_t* bits) const {
    if (shape.num_positions == 1) {  // neighbours in memory: whole bytes at a time
      uint8_t* byte = bits + (first_item >> 3);
      *byte = static_cast<uint8_t>(*byte | (chosen << (first_item & 7)));
      for (chosen >>= 8 - (first_item & 7); chosen != 0; chosen >>= 8) {
        ++byte;
        *byte = static_cast<uint8_t>(*byte | chosen);
      }
      return;
    }
    for (; chosen != 0; chosen &= chosen - 1) {
      const int64_t item = first_item + std::countr_zero(chosen) * shape.num_positions;
      bits[item >> 3] = static_cast<uint8_t>(bits[item >> 3] | (1U << (item & 7)));
    }
  }

  template <int kM>
  void add_all(Prunable* out) const {
    const int64_t num_group_rows = shape.num_outputs * shape.num_inputs / m;
    for (int64_t row = 0; row < num_group_rows; ++row)
      for (int64_t position = 0; position < shape.num_positions; ++position)
        add_group<kM>(row * m * shape.num_positions + position, out);
  }
};

template <typename Bits>
void add_all(const MaskKind& kind, const at::Tensor& weight, const uint8_t* kept, Prunable* out) {
  const Walk<Bits> walk{static_cast<const Bits*>(weight.const_data_ptr()), kept,
                        WeightShape(weight.sizes()), kind.m, kind.m - kind.n};
  // Common patterns (1:2, 2:4, 4:8) get a loop with a constant group size.
  if (kind.m == 2) return walk.template add_all<2>(out);
  if (kind.m == 4) return walk.template add_all<4>(out);
  if (kind.m == 8) return walk.template add_all<8>(out);
  walk.template add_all<0>(out);
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

Prunable prunable_n_of_m(const MaskKind& kind, const at::Tensor& weight, const uint8_t* kept) {
  if (kind.transposable) return prunable_in_tiles(weight, kept);
  check(kind.m <= kMaxGroup, "N:M has at most 64 neighbours");
  Prunable result;
  result.bits.resize(static_cast<size_t>(num_mask_bytes(weight.numel())));
  if (weight.element_size() == 2) add_all<uint16_t>(kind, weight, kept, &result);
  if (weight.element_size() == 4) add_all<uint32_t>(kind, weight, kept, &result);
  if (weight.element_size() == 8) add_all<uint64_t>(kind, weight, kept, &result);
  return result;
}

}  // namespace lockstep::recal
