#pragma once

#include <algorithm>
#include <cstdint>

#include "recal/masks/mask_kind.h"
#include "recal/masks/weight_shape.h"

namespace lockstep::recal {

/// How the items of a weight, read in row-major order, fall into groups: runs of neighbours that
/// belong to one group, or each to the next group.
struct GroupRuns {
  int64_t num_groups = 0;
  int64_t num_rows = 0;
  int64_t row_items = 0;        ///< items of a row
  int64_t run_items = 0;        ///< items of a run; the last of a row may have fewer
  bool steps = false;           ///< neighbours in a run belong to neighbouring groups
  int64_t groups_per_row = 0;   ///< by how much the first group of a row is above the last row's
  int64_t runs_per_group = 1;   ///< neighbouring runs of a row that belong to the same groups
  int64_t groups_per_step = 1;  ///< by how much the first group rises after these runs

  /// Members of a group: in a row of groups num_short at the end have fewer.
  int64_t group_items = 0, short_group_items = 0;
  int64_t groups_in_row = 1, num_short = 0;
};

/// kind: block, filter or channel.
GroupRuns group_runs(const MaskKind& kind, const WeightShape& shape);

/// Calls visit(first item, number of items, first group) for each run, in row-major order.
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
