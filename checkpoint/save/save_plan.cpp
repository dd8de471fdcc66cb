#include "checkpoint/save/save_plan.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <ATen/ops/full.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/simd/bit_mask.h"
#include "checkpoint/format/object_graph.h"
#include "checkpoint/format/tensor_type.h"

namespace lockstep::checkpoint {
namespace {

/// True if all items without a bit are 0 in every bit. Without a branch per item, so the compiler
/// can vectorize it.
template <typename Item>
bool pruned_are_zero(const char* bytes, const uint8_t* bits, int64_t num_items) {
  Item found = 0;
  for (int64_t i = 0; i < num_items; ++i) {
    Item item = 0;
    std::memcpy(&item, bytes + i * static_cast<int64_t>(sizeof(Item)), sizeof(Item));
    found |= is_kept(bits, i) ? Item{0} : item;
  }
  return found == 0;
}

bool pruned_are_zero(const char* bytes, const uint8_t* bits, int64_t num_items, int item_bytes) {
  switch (item_bytes) {
    case 2:
      return pruned_are_zero<uint16_t>(bytes, bits, num_items);
    case 4:
      return pruned_are_zero<uint32_t>(bytes, bits, num_items);
    default:
      return pruned_are_zero<uint64_t>(bytes, bits, num_items);
  }
}

}  // namespace

MaskIndex::MaskIndex(const at::Tensor& bits, int64_t num_elements)
    : bits_(bits.const_data_ptr<uint8_t>()),
      num_elements_(num_elements),
      num_kept_(count_kept(bits_, num_elements)) {
  check(bits.is_contiguous() && bits.numel() == num_mask_bytes(num_elements),
        "a mask has a bit for each element of its tensor");
}

/// Returns the element of stored element k; the end for k = K. Skips whole bytes by their number of
/// bits.
int64_t MaskIndex::element_of(int64_t stored) const {
  if (stored >= num_kept_) return num_elements_;
  if (stored < last_.num_before) last_ = {};
  int64_t byte = last_.byte;
  for (int64_t count = last_.num_before;; ++byte) {
    const int in_byte = std::popcount(bits_[byte]);
    if (count + in_byte > stored) {
      last_ = {byte, count};
      int64_t element = 8 * byte;
      for (;; ++element)
        if (is_kept(bits_, element) && count++ == stored) return element;
    }
    count += in_byte;
  }
}

ElementRange MaskIndex::stored(const ElementRange& elements) const {
  return {kept_before(bits_, elements.begin_E), kept_before(bits_, elements.end_E)};
}

ElementRange MaskIndex::elements(const ElementRange& stored) const {
  return {stored.begin_E == 0 ? 0 : element_of(stored.begin_E), element_of(stored.end_E)};
}

bool MaskIndex::pack(const char* items, const ElementRange& elements, int item_bytes,
                     char* packed) const {
  // The range may start inside a mask byte; pack_kept() needs its bits from bit 0.
  const int64_t num_items = elements.num_elements();
  std::vector<uint8_t> bits(static_cast<size_t>(num_mask_bytes(num_items)), 0);
  copy_bits(bits_, elements.begin_E, num_items, bits.data(), 0);
  const char* begin = items + elements.begin_E * item_bytes;
  pack_kept(begin, bits.data(), num_items, item_bytes, packed);
  return pruned_are_zero(begin, bits.data(), num_items, item_bytes);
}

// save_pieces(): turns the caller's state into pieces, with names, forms and, for sparse
// checkpoints, kept values.

static void require_storable(const StateEntry& entry) {
  check(entry.tensor.defined() != (entry.text != nullptr),
        "state '" + entry.key + "' is not one tensor or one string");
  if (entry.text != nullptr) return;
  if (entry.held && !can_be_sliced(type_number(entry.tensor.scalar_type()).value_or(0)))
    throw Error(
        ExitCode::kConfig, "checkpoint",
        fmt::format("tensor '{}' is sharded and {}, which TensorFlow does not read in slices",
                    entry.key, c10::toString(entry.tensor.scalar_type())))
        .everywhere();
  if (entry.tensor.layout() != at::kStrided || !type_number(entry.tensor.scalar_type()))
    throw Error(ExitCode::kConfig, "checkpoint",
                fmt::format("tensor '{}' is {} ({}), which TensorFlow's files do not support; "
                            "convert it before it is listed",
                            entry.key, c10::toString(entry.tensor.scalar_type()),
                            entry.tensor.layout() == at::kStrided ? "dense" : "not dense"))
        .everywhere();
}

static StoredTensor text_piece(std::string name, std::string text) {
  return {.name = std::move(name), .dtype = kStringType, .text = std::move(text)};
}

static StoredTensor tensor_piece(std::string name, const at::Tensor& tensor) {
  return {.name = std::move(name),
          .dtype = type_number(tensor.scalar_type()).value_or(0),
          .shape = tensor.sizes().vec(),
          .element_bytes = static_cast<int64_t>(tensor.element_size()),
          .tensor = tensor};
}

/// base/simd/bit_mask.h packs elements of these widths only.
static bool can_be_packed(const StateEntry& entry) {
  const auto width = entry.tensor.defined() ? entry.tensor.element_size() : 0;
  return entry.kept_bits.defined() && (width == 2 || width == 4 || width == 8);
}

static void add_sparse(const StateEntry& entry, std::vector<StoredTensor>* pieces) {
  const at::Tensor kept_bits = entry.kept_bits.cpu().contiguous();
  const MaskIndex kept(kept_bits, entry.tensor.numel());
  StoredTensor values = tensor_piece(sparse_values_name(entry.key), entry.tensor);
  values.shape = {kept.num_kept()};
  values.kept_bits = kept_bits;
  // Positions among all elements become positions among the kept ones.
  if (entry.held) {
    values.held_dense = entry.held;
    values.held.emplace();
    for (const ElementRange& range : *entry.held)
      if (const ElementRange stored = kept.stored(range); stored.num_elements() > 0)
        values.held->push_back(stored);
  }
  pieces->push_back(std::move(values));
  pieces->push_back(text_piece(
      sparse_form_name(entry.key),
      fmt::format("[{}] {}", fmt::join(entry.tensor.sizes(), ", "), index_name(entry.kept_key))));
}

int64_t StoredTensor::num_elements() const { return c10::multiply_integers(shape); }

std::vector<StoredTensor> save_pieces(const StateList& state, int64_t number, bool sparse) {
  std::vector<StoredTensor> pieces;
  std::vector<std::string> keys;
  for (const StateEntry& entry : state) {
    require_storable(entry);
    if (sparse && can_be_packed(entry)) {
      add_sparse(entry, &pieces);
      // A sparse tensor is not a variable, so the object graph omits it.
      continue;
    }
    keys.push_back(entry.key);
    pieces.push_back(entry.text != nullptr ? text_piece(index_name(entry.key), *entry.text)
                                           : tensor_piece(index_name(entry.key), entry.tensor));
    pieces.back().held = entry.held;
  }
  pieces.push_back(tensor_piece(index_name(kCounterKey), at::full({}, number, at::kLong)));
  pieces.push_back(text_piece(std::string(kGraphName), object_graph(keys)));
  return pieces;
}

std::string summary(const std::vector<StoredTensor>& pieces, int64_t number) {
  std::string forms;
  for (const StoredTensor& piece : pieces)
    forms += fmt::format("{} {} {}\n", piece.name, type_and_shape(piece.dtype, piece.shape),
                         piece.is_divided());
  return fmt::format("save {}, {} tensors, sha256 of names and shapes {}", number, pieces.size(),
                     sha256_hex(forms));
}

int64_t dense_bytes(const std::vector<StoredTensor>& pieces) {
  int64_t count = 0;
  for (const StoredTensor& piece : pieces)
    count += piece.is_text() ? static_cast<int64_t>(piece.text.size())
                             : static_cast<int64_t>(piece.tensor.nbytes());
  return count;
}

// SavePlan: the cuts are computed on one line of bytes: begins_[i] is where piece i starts on it.

/// Row length in bytes above which rows are cut inside.
constexpr int64_t kMaxRowBytes = int64_t{1} << 20;
// Cuts inside a row fall on multiples of the alignment of direct I/O.
constexpr int64_t kCutBytes = 4096;
constexpr int kMostRanks = 99'999;

/// Returns the granularity of cuts in elements.
static int64_t cut_elements(const StoredTensor& piece) {
  const int64_t num_elements = piece.num_elements();
  if (piece.shape.empty() || piece.shape[0] == 0) return std::max<int64_t>(num_elements, 1);
  const int64_t row_E = std::max<int64_t>(num_elements / piece.shape[0], 1);
  if (row_E * piece.element_bytes > kMaxRowBytes) return kCutBytes / piece.element_bytes;
  return row_E;
}

/// Returns the element at which a tensor is cut, so that about `bytes` bytes come before it.
static int64_t cut_at(const StoredTensor& piece, int64_t bytes, int64_t min_cut_bytes) {
  const int64_t num_elements = piece.num_elements(), num_bytes = piece.num_bytes();
  if (bytes <= 0) return 0;
  if (bytes >= num_bytes) return num_elements;
  if (num_bytes < min_cut_bytes || !can_be_sliced(piece.dtype))
    return bytes * 2 < num_bytes ? 0 : num_elements;
  const int64_t step_E = cut_elements(piece);
  const int64_t steps = (bytes / piece.element_bytes + step_E / 2) / step_E;
  return std::min(steps * step_E, num_elements);
}

SavePlan::SavePlan(const std::vector<StoredTensor>& pieces, int world_size, int64_t min_cut_bytes)
    : pieces_(pieces), world_size_(world_size), min_cut_bytes_(min_cut_bytes) {
  if (world_size > kMostRanks)
    throw Error(ExitCode::kConfig, "checkpoint",
                fmt::format("a checkpoint is written by at most {} ranks, as its file names have "
                            "five digits, and there are {}; set checkpoint: off, or start fewer",
                            kMostRanks, world_size))
        .everywhere();
  for (const StoredTensor& piece : pieces) {
    begins_.push_back(total_bytes_);
    if (!piece.is_divided()) total_bytes_ += piece.num_bytes();
  }
}

int64_t SavePlan::border(size_t piece, int rank) const {
  if (rank == 0) return 0;
  if (rank == world_size_) return pieces_[piece].num_elements();
  // total * rank / world_size without overflow
  const int64_t cut =
      total_bytes_ / world_size_ * rank + total_bytes_ % world_size_ * rank / world_size_;
  return cut_at(pieces_[piece], cut - begins_[piece], min_cut_bytes_);
}

std::vector<ShardItem> SavePlan::parts_of(int rank) const {
  std::vector<ShardItem> parts;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    // Somebody must write the entry of a tensor without elements.
    if (pieces_[i].num_elements() == 0) {
      if (rank == 0) parts.push_back({i, {0, 0}});
    } else if (pieces_[i].is_divided()) {
      for (const ElementRange& range : *pieces_[i].held) parts.push_back({i, range});
    } else if (const ElementRange range{border(i, rank), border(i, rank + 1)};
               range.begin_E < range.end_E) {
      parts.push_back({i, range});
    }
  }
  return parts;
}

}  // namespace lockstep::checkpoint
