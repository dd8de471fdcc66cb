#pragma once

#include <algorithm>
#include <cstdint>

#include "recal/masks/mask_kind.h"
#include "recal/masks/weight_shape.h"

namespace lockstep::recal {

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

/// Returns the mapping for a block, filter or channel mask.
GroupRuns group_runs(const MaskKind& kind, const WeightShape& shape);

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

}  // namespace lockstep::recal
