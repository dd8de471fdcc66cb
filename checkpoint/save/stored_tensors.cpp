// Turns the caller's state into pieces: names, forms and, for sparse checkpoints, kept values.
#include "checkpoint/save/stored_tensors.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/bits/bit_mask.h"
#include "base/digest.h"
#include "base/error.h"
#include "checkpoint/bundle/object_graph.h"
#include "checkpoint/bundle/tensor_type.h"
#include "checkpoint/files/state_names.h"
#include "checkpoint/save/mask_index.h"

namespace lockstep::checkpoint {
namespace {

void require_storable(const StateEntry& entry) {
  check(entry.tensor.defined() != (entry.text != nullptr),
        "state '" + entry.key + "' is not one tensor or one text");
  if (entry.text != nullptr) return;
  if (entry.held && !can_be_sliced(type_number(entry.tensor.scalar_type()).value_or(0)))
    throw Error(
        ExitCode::kConfig, "checkpoint",
        fmt::format("tensor '{}' is divided over the ranks and {}, which TensorFlow does not "
                    "read in slices",
                    entry.key, c10::toString(entry.tensor.scalar_type())))
        .everywhere();
  if (entry.tensor.layout() != at::kStrided || !type_number(entry.tensor.scalar_type()))
    throw Error(ExitCode::kConfig, "checkpoint",
                fmt::format("tensor '{}' is {} ({}), for which TensorFlow's files have no form; "
                            "convert it before it is listed",
                            entry.key, c10::toString(entry.tensor.scalar_type()),
                            entry.tensor.layout() == at::kStrided ? "dense" : "not dense"))
        .everywhere();
}

StoredTensor text_piece(std::string name, std::string text) {
  return {.name = std::move(name), .dtype = kStringType, .text = std::move(text)};
}

StoredTensor tensor_piece(std::string name, const at::Tensor& tensor) {
  return {.name = std::move(name),
          .dtype = type_number(tensor.scalar_type()).value_or(0),
          .shape = tensor.sizes().vec(),
          .element_bytes = static_cast<int64_t>(tensor.element_size()),
          .tensor = tensor};
}

/// base/bits packs elements of these widths only.
bool can_be_packed(const StateEntry& entry) {
  const auto width = entry.tensor.defined() ? entry.tensor.element_size() : 0;
  return entry.kept_bits.defined() && (width == 2 || width == 4 || width == 8);
}

void add_sparse(const StateEntry& entry, std::vector<StoredTensor>* pieces) {
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

}  // namespace

int64_t StoredTensor::num_elements() const {
  int64_t count = 1;
  for (const int64_t items : shape) count *= items;
  return count;
}

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

}  // namespace lockstep::checkpoint
