#include "dist/bucket/shard_alignment.h"

#include <algorithm>

namespace lockstep::dist {
namespace {

/// Returns the nearer of two multiples of `unit` around `at`. The upper one is limited to `end`.
int64_t nearer(int64_t at, int64_t unit, int64_t end) {
  const int64_t below = at / unit * unit;
  const int64_t above = std::min(below + unit, end);
  return at - below <= above - at ? below : above;
}

}  // namespace

int64_t RowBorders::nearest(int64_t at_E, int64_t num_rows) const {
  return nearer(at_E, row_E * num_rows, num_elements);
}

int64_t RowBorders::nearest_cut(int64_t at_E) const {
  const int64_t row_begin = std::min(at_E, num_elements - 1) / row_E * row_E;
  const int64_t row_end = std::min(row_begin + row_E, num_elements);
  return row_begin + nearer(at_E - row_begin, kCutElements, row_end - row_begin);
}

}  // namespace lockstep::dist
