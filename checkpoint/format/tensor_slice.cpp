// Boxes of tensors, their keys in an index, and the check that they cover a tensor.
#include "checkpoint/format/tensor_slice.h"

#include <array>
#include <bit>
#include <cstddef>
#include <set>
#include <stdexcept>

#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::checkpoint {

// boxes_of(): cuts a range of row-major elements into boxes, each contiguous in memory.

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

int64_t TensorBox::num_elements() const { return c10::multiply_integers(length); }

std::vector<TensorBox> boxes_of(const ElementRange& range, const std::vector<int64_t>& shape) {
  check(!shape.empty() || range == ElementRange{0, 1}, "a scalar cannot be sliced");
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

// Keys in TensorFlow's "ordered code": encoded keys sort by bytes as their numbers and texts do.

/// Writes the number of bytes that follow, then the value's bytes, most significant first.
static void put_unsigned(std::string* out, uint64_t value) {
  const int num_bytes = (std::bit_width(value) + 7) / 8;
  out->push_back(static_cast<char>(num_bytes));
  for (int i = num_bytes - 1; i >= 0; --i) out->push_back(static_cast<char>(value >> (8 * i)));
}

/// Writes a text. Bytes 00 and ff get a marker byte, and 00 01 ends the text.
static void put_text(std::string* out, std::string_view text) {
  for (const char byte : text) {
    out->push_back(byte);
    if (byte == '\0') out->push_back('\xff');
    if (byte == '\xff') out->push_back('\0');
  }
  out->append("\0\1", 2);
}

/// Writes a signed number: two's complement, most significant byte first. The number of leading
/// bits that are the opposite of the sign gives the length in bytes. So 7 of 8 bits of each byte
/// carry the value.
static void put_signed(std::string* out, int64_t value) {
  const auto magnitude = static_cast<uint64_t>(value < 0 ? ~value : value);
  const int num_bytes = std::bit_width(magnitude) / 7 + 1;
  constexpr int kMaxBytes = 10;
  std::array<unsigned char, kMaxBytes> bytes{};  // the number, its sign extended
  for (int i = 0; i < kMaxBytes; ++i) {
    const int shift = 8 * (kMaxBytes - 1 - i);
    bytes[static_cast<size_t>(i)] = static_cast<unsigned char>(value >> (shift < 64 ? shift : 63));
  }
  const auto first = static_cast<size_t>(kMaxBytes - num_bytes);
  // Flips the first num_bytes bits; their number encodes the length.
  for (int bit = 0; bit < num_bytes; ++bit)
    bytes[first + static_cast<size_t>(bit / 8)] ^= static_cast<unsigned char>(0x80 >> (bit % 8));
  for (size_t i = first; i < bytes.size(); ++i) out->push_back(static_cast<char>(bytes[i]));
}

std::string slice_key(std::string_view name, const TensorBox& box) {
  std::string key;
  // The name is between a fixed 0 and the box, so keys sort by tensor name.
  put_unsigned(&key, 0);
  put_text(&key, name);
  put_unsigned(&key, box.start.size());
  for (size_t d = 0; d < box.start.size(); ++d) {
    put_signed(&key, box.start[d]);
    put_signed(&key, box.length[d]);
  }
  return key;
}

TensorBox with_whole_dims(TensorBox box, const std::vector<int64_t>& shape) {
  for (size_t d = 0; d < shape.size(); ++d)
    if (box.start[d] == 0 && box.length[d] == shape[d]) box.length[d] = -1;
  return box;
}

// require_cover(): checks that slices cover their tensor. Equal volume and no overlap together mean
// that each element is covered once.

using Boxes = std::vector<const TensorBox*>;

[[noreturn]] static void refuse_overlap(const TensorBox& a, const TensorBox& b) {
  throw std::runtime_error(fmt::format("slices {} and {} overlap", box_text(a), box_text(b)));
}

/// Checks the sum of elements. For boxes that do not overlap, an equal sum means that nothing is
/// left out.
static void require_volume(const Boxes& boxes, const std::vector<int64_t>& shape) {
  const int64_t wanted = TensorBox{shape, shape}.num_elements();
  int64_t sum = 0;
  for (const TensorBox* box : boxes) {
    const int64_t num_elements = box->num_elements();
    if (num_elements == 0)
      throw std::runtime_error(fmt::format("slice {} has no elements", box_text(*box)));
    if (__builtin_add_overflow(sum, num_elements, &sum) || sum > wanted)
      throw std::runtime_error(
          fmt::format("slices have more elements than the tensor, which has {}", wanted));
  }
  if (sum != wanted)
    throw std::runtime_error(fmt::format("slices have {} of {} elements", sum, wanted));
}

/// Checks boxes that are contiguous runs. After sorting, they overlap only if two neighbours
/// overlap.
static void require_runs_apart(Boxes* boxes, const std::vector<int64_t>& shape) {
  const auto first = [&](const TensorBox* box) { return tensor_element(*box, shape, 0); };
  std::ranges::sort(*boxes, {}, first);
  for (size_t i = 1; i < boxes->size(); ++i)
    if (first((*boxes)[i - 1]) + (*boxes)[i - 1]->num_elements() > first((*boxes)[i]))
      refuse_overlap(*(*boxes)[i - 1], *(*boxes)[i]);
}

/// Returns the dimension with the most distinct starts. Sweeping along it compares the fewest
/// pairs.
static size_t most_cut_dim(const Boxes& boxes, size_t num_dims) {
  size_t best = 0, most = 0;
  for (size_t d = 0; d < num_dims; ++d) {
    std::set<int64_t> starts;
    for (const TensorBox* box : boxes) starts.insert(box->start[d]);
    if (starts.size() > most) best = d;
    most = std::max(most, starts.size());
  }
  return best;
}

/// True if the boxes share an element.
static bool overlap(const TensorBox& a, const TensorBox& b) {
  for (size_t d = 0; d < a.start.size(); ++d)
    if (a.start[d] >= b.start[d] + b.length[d] || b.start[d] >= a.start[d] + a.length[d])
      return false;
  return true;
}

/// Checks any boxes. Sweeps along one dimension and compares the boxes that intersect in it.
static void require_apart(Boxes* boxes, size_t num_dims) {
  // A hostile index could otherwise make this quadratic in the number of slices.
  constexpr int64_t kMaxComparisons = int64_t{1} << 22;
  const size_t dim = most_cut_dim(*boxes, num_dims);
  std::ranges::sort(*boxes, {}, [&](const TensorBox* box) { return box->start[dim]; });
  int64_t num_comparisons = 0;
  for (size_t i = 0; i < boxes->size(); ++i) {
    const TensorBox& box = *(*boxes)[i];
    const int64_t end = box.start[dim] + box.length[dim];
    for (size_t k = i + 1; k < boxes->size() && (*boxes)[k]->start[dim] < end; ++k) {
      if (++num_comparisons > kMaxComparisons)
        throw std::runtime_error(
            fmt::format("{} slices in more dimensions than can be checked", boxes->size()));
      if (overlap(box, *(*boxes)[k])) refuse_overlap(box, *(*boxes)[k]);
    }
  }
}

void require_cover(const std::vector<TensorBox>& boxes, const std::vector<int64_t>& shape) {
  Boxes list;
  for (const TensorBox& box : boxes) list.push_back(&box);
  require_volume(list, shape);
  // Our own slices are runs; boxes of other kinds come from TensorFlow's partitioned variables.
  const bool all_runs = std::ranges::all_of(
      boxes, [&](const TensorBox& box) { return run_elements(box, shape) == box.num_elements(); });
  if (all_runs)
    require_runs_apart(&list, shape);
  else
    require_apart(&list, shape.size());
}

}  // namespace lockstep::checkpoint
