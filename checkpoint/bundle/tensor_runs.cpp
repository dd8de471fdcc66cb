#include "checkpoint/bundle/tensor_runs.h"

#include "base/error.h"

namespace lockstep::checkpoint {

int64_t run_elements(const TensorBox& box, const std::vector<int64_t>& shape) {
  int64_t run_E = 1;
  // From the last dimension outwards: a dimension that is cut ends the contiguous run.
  for (size_t d = shape.size(); d-- > 0;) {
    run_E *= box.length[d];
    if (box.length[d] != shape[d]) break;
  }
  return run_E;
}

int64_t tensor_element(const TensorBox& box, const std::vector<int64_t>& shape, int64_t box_E) {
  int64_t tensor_E = 0, row_E = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    tensor_E += (box.start[d] + box_E % box.length[d]) * row_E;
    box_E /= box.length[d];
    row_E *= shape[d];
  }
  return tensor_E;
}

void check_ranges(const std::vector<ElementRange>& ranges, int64_t num_elements) {
  int64_t at_E = 0;
  for (const ElementRange& range : ranges) {
    check(range.begin_E >= at_E && range.end_E >= range.begin_E && range.end_E <= num_elements,
          "ranges of elements that are out of order or outside of their tensor");
    at_E = range.end_E;
  }
}

}  // namespace lockstep::checkpoint
