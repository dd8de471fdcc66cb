// Cuts a range of row-major elements into boxes, each contiguous in memory.
#include "checkpoint/bundle/tensor_box.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::checkpoint {
namespace {

/// Adds the boxes of elements [begin, end) of a sub-tensor. `outer` fixes its indices 0 to dim-1.
/// The boxes are the end of the first row, whole rows, and the start of the last row.
void add_boxes(int64_t begin, int64_t end, size_t dim, const std::vector<int64_t>& shape,
               TensorBox* outer, std::vector<TensorBox>* boxes) {
  if (begin == end) return;
  int64_t row_E = 1;
  for (size_t d = dim + 1; d < shape.size(); ++d) row_E *= shape[d];
  const auto add_in_row = [&](int64_t from, int64_t to) {
    outer->start[dim] = from / row_E;
    outer->length[dim] = 1;
    const int64_t row_begin = outer->start[dim] * row_E;
    add_boxes(from - row_begin, to - row_begin, dim + 1, shape, outer, boxes);
  };
  const int64_t first_row = (begin + row_E - 1) / row_E, end_row = end / row_E;
  if (first_row > end_row) return add_in_row(begin, end);  // inside one row
  if (begin < first_row * row_E) add_in_row(begin, first_row * row_E);
  if (first_row < end_row) {
    TensorBox box = *outer;
    box.start[dim] = first_row;
    box.length[dim] = end_row - first_row;
    for (size_t d = dim + 1; d < shape.size(); ++d) {
      box.start[d] = 0;
      box.length[d] = shape[d];
    }
    boxes->push_back(std::move(box));
  }
  if (end_row * row_E < end) add_in_row(end_row * row_E, end);
}

}  // namespace

int64_t TensorBox::num_elements() const {
  int64_t count = 1;
  for (const int64_t items : length) count *= items;
  return count;
}

std::vector<TensorBox> boxes_of(const ElementRange& range, const std::vector<int64_t>& shape) {
  check(!shape.empty() || range == ElementRange{0, 1}, "a scalar is not cut");
  if (shape.empty()) return {TensorBox{}};
  TensorBox outer{std::vector<int64_t>(shape.size(), 0), std::vector<int64_t>(shape.size(), 0)};
  std::vector<TensorBox> boxes;
  add_boxes(range.begin_E, range.end_E, 0, shape, &outer, &boxes);
  return boxes;
}

std::string box_text(const TensorBox& box) {
  std::string text;
  for (size_t d = 0; d < box.start.size(); ++d)
    text += fmt::format("{}{}:{}", d == 0 ? "" : ",", box.start[d], box.start[d] + box.length[d]);
  return text;
}

TensorBox whole_box(const std::vector<int64_t>& shape) {
  return {std::vector<int64_t>(shape.size(), 0), shape};
}

}  // namespace lockstep::checkpoint
