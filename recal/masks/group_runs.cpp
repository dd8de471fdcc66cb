#include "recal/masks/group_runs.h"

#include "base/error.h"

namespace lockstep::recal {
// Weight (o, i, r) is element (o * I + i) * R + r (weight_shape.h), so one weight row is I * R
// elements. A linear layer has R = 1.
//
// filter   group o: a row is one run.
// channel  group i: with R = 1 neighbouring elements step through the groups; otherwise a run is
//          the R positions of one input. groups_per_row is 0, since every row has the same groups.
// block    group (o, i / m, r): with R = 1 a run is a block; otherwise m runs of R positions belong
//          to the same R groups. The last block of a row is short if m does not divide I.
namespace {

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

}  // namespace

GroupRuns group_runs(const MaskKind& kind, const WeightShape& shape) {
  if (kind.pattern == MaskPattern::kFilter) return filter_runs(shape);
  if (kind.pattern == MaskPattern::kChannel) return channel_runs(shape);
  check(kind.pattern == MaskPattern::kBlock && kind.m > 0, "a mask kind without groups");
  return block_runs(shape, kind.m);
}

}  // namespace lockstep::recal
