#include "checkpoint/format/saved_values.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/simd/bit_mask.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/format/tensor_type.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kFolder = "_lockstep/sparse/";
constexpr std::string_view kForm = "/form";
constexpr size_t kMaxSparseDimensions = 64;

/// Returns the numbers of "64, 128"; nullopt for any other text or too many elements.
std::optional<std::vector<int64_t>> parse_shape(std::string_view text) {
  std::vector<int64_t> shape;
  int64_t num_elements = 1;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  while (at != end) {
    int64_t dim = 0;
    const auto [behind, fault] = std::from_chars(at, end, dim);
    if (fault != std::errc() || dim < 0 || shape.size() == kMaxSparseDimensions)
      return std::nullopt;
    if (__builtin_mul_overflow(num_elements, std::max<int64_t>(dim, 1), &num_elements) ||
        num_elements >= int64_t{1} << 60)
      return std::nullopt;
    shape.push_back(dim);
    at = behind;
    if (at == end) break;
    if (end - at < 3 || at[0] != ',' || at[1] != ' ') return std::nullopt;
    at += 2;
  }
  return shape;
}

}  // namespace

std::optional<std::string> key_of_sparse_form(std::string_view name) {
  if (!name.starts_with(kFolder) || !name.ends_with(kForm) ||
      name.size() <= kFolder.size() + kForm.size())
    return std::nullopt;
  return std::string(name.substr(kFolder.size(), name.size() - kFolder.size() - kForm.size()));
}

int64_t SparseForm::num_elements() const { return c10::multiply_integers(shape); }

std::string text_of(const SparseForm& form) {
  return fmt::format("[{}] {}", fmt::join(form.shape, ", "), form.mask_name);
}

std::optional<SparseForm> parse_sparse_form(std::string_view text) {
  const size_t end = text.find("] ");
  if (!text.starts_with('[') || end == std::string_view::npos) return std::nullopt;
  std::optional<std::vector<int64_t>> shape = parse_shape(text.substr(1, end - 1));
  if (!shape) return std::nullopt;
  SparseForm form{std::move(*shape), std::string(text.substr(end + 2))};
  // Only the canonical text is accepted, so that equal forms have equal texts.
  if (form.mask_name.empty() || text_of(form) != text) return std::nullopt;
  return form;
}

void unpack_range(const char* packed, const uint8_t* bits, const ElementRange& range,
                  int item_bytes, char* items) {
  const auto one_by_one = [&](int64_t from, int64_t to) {
    for (int64_t item = from; item < to; ++item) {
      char* target = items + item * item_bytes;
      if (!is_kept(bits, item)) {
        std::memset(target, 0, static_cast<size_t>(item_bytes));
        continue;
      }
      std::memcpy(target, packed, static_cast<size_t>(item_bytes));
      packed += item_bytes;
    }
  };
  // Whole bytes of the mask at once; single items at both ends.
  const int64_t first = std::min((range.begin_E + 7) / 8 * 8, range.end_E);
  const int64_t last = std::max(range.end_E / 8 * 8, first);
  one_by_one(range.begin_E, first);
  if (last > first)
    packed += item_bytes * unpack_kept(packed, bits + first / 8, last - first, item_bytes,
                                       items + first * item_bytes);
  one_by_one(last, range.end_E);
}

// DenseView: a sparse tensor consists of two tensors, kept values and a form text, which names the
// mask. Everything else is passed on to the BundleReader.

constexpr int64_t kMaxFormBytes = 65536;

/// Returns the bytes of a tensor or of all its slices.
static int64_t stored_bytes(const BundleEntry& entry) {
  int64_t sum = entry.is_sliced() ? 0 : entry.num_bytes;
  for (const BundleSlice& slice : entry.slices) sum += slice.num_bytes;
  return sum;
}

/// Returns the bytes of an element; 0 for types that are not read.
static int64_t item_bytes(int32_t dtype) {
  const auto type = scalar_type(dtype);
  return type ? static_cast<int64_t>(c10::elementSize(*type)) : 0;
}

/// True for a type that masks can prune (base/simd/bit_mask.h).
static bool is_prunable(const BundleEntry& values) {
  const int64_t bytes = item_bytes(values.dtype);
  return values.shape.size() == 1 && (bytes == 2 || bytes == 4 || bytes == 8);
}

DenseView::DenseView(BundleReader* reader) : reader_(*reader) {
  for (const auto& [name, entry] : reader_.index().entries)
    // The form texts are found by their names; each leads to values and mask.
    if (const auto key = key_of_sparse_form(name)) {
      add_sparse(*key, name);
      parts_.insert({name, sparse_values_name(*key)});
    }
  for (const auto& [name, tensor] : sparse_)
    if (reader_.find(name) != nullptr) reader_.refuse(name, "is saved twice: dense and sparse");
  for (const auto& [name, entry] : reader_.index().entries)
    if (!parts_.contains(name)) names_.push_back(name);
  for (const auto& [name, tensor] : sparse_) names_.push_back(name);
  std::sort(names_.begin(), names_.end());
}

SparseForm DenseView::form_at(const std::string& form_name) {
  const BundleEntry& entry = *reader_.find(form_name);
  if (entry.dtype != kStringType || entry.num_elements() != 1 || entry.num_bytes > kMaxFormBytes)
    reader_.refuse(form_name, "is not a short string");
  const std::string text = reader_.read_text(form_name);
  std::optional<SparseForm> form = parse_sparse_form(text);
  if (!form)
    reader_.refuse(form_name, fmt::format("'{}' does not have the form '[64, 128] MASK'", text));
  return std::move(*form);
}

void DenseView::add_sparse(const std::string& key, const std::string& form_name) {
  SparseForm form = form_at(form_name);
  const std::string values_name = sparse_values_name(key);
  for (const std::string& needed : {values_name, form.mask_name})
    if (reader_.find(needed) == nullptr)
      reader_.refuse(form_name,
                     fmt::format("needs '{}', which the checkpoint does not contain", needed));
  const BundleEntry& values = *reader_.find(values_name);
  const BundleEntry& mask = *reader_.find(form.mask_name);
  const int64_t num_elements = form.num_elements();
  if (!is_prunable(values) || values.num_elements() > num_elements)
    reader_.refuse(values_name, fmt::format("is {}, which does not match a mask of [{}]",
                                            type_and_shape(values.dtype, values.shape),
                                            fmt::join(form.shape, ", ")));
  if (mask.dtype != type_number(at::kByte) || mask.num_elements() != num_mask_bytes(num_elements))
    reader_.refuse(form.mask_name,
                   fmt::format("does not have one bit for each of {} elements", num_elements));
  sparse_[index_name(key)] = {values.dtype,
                              std::move(form.shape),
                              &values,
                              std::move(form.mask_name),
                              num_elements * item_bytes(values.dtype),
                              stored_bytes(values) + stored_bytes(*reader_.find(form_name))};
}

std::optional<DenseTensor> DenseView::find(const std::string& name) const {
  const auto place = sparse_.find(name);
  if (place != sparse_.end()) return place->second;
  const BundleEntry* entry = parts_.contains(name) ? nullptr : reader_.find(name);
  if (entry == nullptr) return std::nullopt;
  const int64_t stored = stored_bytes(*entry);
  return DenseTensor{entry->dtype, entry->shape, entry, "", stored, stored};
}

bool DenseView::is_text(const std::string& name) const {
  const std::optional<DenseTensor> tensor = find(name);
  return tensor && tensor->dtype == kStringType;
}

at::Tensor DenseView::read(const std::string& name) {
  if (!is_sparse(name)) return reader_.read(name);
  mask_of(name);  // proves that the file is as large as the shape claims
  const DenseTensor& tensor = sparse_.at(name);
  at::Tensor values = at::empty(tensor.shape, scalar_type(tensor.dtype).value());
  read_sparse({name, values});
  return values;
}

std::vector<std::string> DenseView::read_texts(const std::string& name) {
  return reader_.read_strings(name);
}

void DenseView::read_all(const std::vector<TensorRead>& reads) {
  std::vector<TensorRead> whole;
  for (const TensorRead& read : reads)
    if (!is_sparse(read.name)) whole.push_back(read);
  reader_.read_all(whole);
  for (const TensorRead& read : reads)
    if (is_sparse(read.name)) read_sparse(read);
}

// A mask is read once; weight and moments of a parameter share it.
at::Tensor DenseView::mask_of(const std::string& name) {
  const DenseTensor& tensor = sparse_.at(name);
  at::Tensor& mask = masks_[tensor.mask_name];
  if (!mask.defined()) mask = reader_.read(tensor.mask_name);
  const auto* bits = mask.const_data_ptr<uint8_t>();
  // A hostile mask could keep bits after the last element, which would misplace the values.
  const int64_t num_elements = SparseForm{tensor.shape, ""}.num_elements();
  if (kept_before(bits, num_elements) != count_kept(bits, 8 * mask.numel()))
    reader_.refuse(tensor.mask_name, "has bits after the last element");
  const int64_t num_kept = kept_before(bits, num_elements);
  if (num_kept != tensor.entry->num_elements())
    reader_.refuse(tensor.mask_name,
                   fmt::format("keeps {} elements, but the checkpoint has {} of '{}'", num_kept,
                               tensor.entry->num_elements(), name));
  return mask;
}

void DenseView::read_sparse(const TensorRead& read) {
  const at::Tensor mask = mask_of(read.name);
  const DenseTensor& tensor = sparse_.at(read.name);
  if (type_number(read.live.scalar_type()) != tensor.dtype ||
      read.live.sizes() != at::IntArrayRef(tensor.shape))
    reader_.refuse(tensor.mask_name, fmt::format("'{}' has another type or shape", read.name));
  const auto* bits = mask.const_data_ptr<uint8_t>();
  const std::vector<ElementRange> ranges =
      read.held.value_or(std::vector<ElementRange>{{0, read.live.numel()}});
  std::vector<ElementRange> kept;
  // Ranges of the dense tensor become ranges of the kept values.
  for (const ElementRange& range : ranges)
    kept.push_back({kept_before(bits, range.begin_E), kept_before(bits, range.end_E)});
  const at::Tensor values = at::empty(tensor.entry->shape, read.live.options().device(at::kCPU));
  reader_.read_all({{sparse_values_name(state_key(read.name).value()), values, kept}});
  const auto width = static_cast<int>(values.element_size());
  with_plain_copy(read.live, read.held.has_value(), [&](const at::Tensor& target) {
    for (size_t i = 0; i < ranges.size(); ++i)
      unpack_range(static_cast<const char*>(values.const_data_ptr()) + kept[i].begin_E * width,
                   bits, ranges[i], width, static_cast<char*>(target.mutable_data_ptr()));
  });
}

// SavedValues: finds the values of keys in checkpoints of all writers. It uses the object graph,
// our naming rule, or plain variable names.

constexpr int64_t kMaxGraphBytes = int64_t{64} << 20;  // some million variables

std::string ValueForm::text() const {
  return unread.empty() ? type_and_shape(dtype, shape)
                        : fmt::format("of an unknown type ('{:.40}')", unread);
}

ValueForm form_of(const StateEntry& entry) {
  if (entry.text != nullptr) return {kStringType, {}};
  return {type_number(entry.tensor.scalar_type()).value_or(0), entry.tensor.sizes().vec()};
}

std::string shown_name(const std::string& name) { return state_key(name).value_or(name); }

SavedValues::SavedValues(const std::string& prefix) : reader_(prefix), view_(&reader_) {
  // Opened at once, so that the files stay readable if they are removed.
  reader_.open_shards();
  const std::string graph(kGraphName);
  const BundleEntry* saved_graph = reader_.find(graph);
  if (saved_graph == nullptr) return;
  if (saved_graph->num_bytes > kMaxGraphBytes)
    reader_.refuse(graph, fmt::format("has {} bytes, an object graph has at most {}",
                                      saved_graph->num_bytes, kMaxGraphBytes));
  graph_ = reader_.decoded(graph, [&] { return SavedGraph(reader_.read_text(graph)); });
}

std::optional<std::string> SavedValues::find(const std::string& key) const {
  std::string name = index_name(key);
  if (graph_ && !is_outside_graph(key)) name = graph_->find(key).value_or(name);
  if (view_.contains(name)) return name;
  if (graph_) return std::nullopt;
  // Name-based checkpoints may omit the object's own part of the key.
  const size_t slash = key.find('/');
  for (const std::string& by_name : {key, slash == std::string::npos ? key : key.substr(slash + 1)})
    if (view_.contains(by_name)) return by_name;
  return std::nullopt;
}

ValueForm SavedValues::form(const std::string& name) const {
  const std::optional<DenseTensor> entry = view_.find(name);
  check(entry.has_value(), "the form of a missing value was requested");
  if (!is_known_type(entry->dtype)) return {0, entry->shape, type_name(entry->dtype)};
  return {entry->dtype, entry->shape};
}

void SavedValues::read_all(const std::vector<NamedEntry>& entries) {
  std::vector<TensorRead> tensors;
  for (const auto& [name, entry] : entries) {
    if (entry.text != nullptr)
      *entry.text = view_.read_texts(name).at(0);
    else
      tensors.push_back({name, entry.tensor, entry.held});
  }
  view_.read_all(tensors);
}

std::vector<std::string> SavedValues::variables() const {
  std::vector<std::string> names;
  for (const std::string& name : view_.names()) {
    if (name == kGraphName || is_outside_graph(name) || name == index_name(kCounterKey) ||
        name == kCounterKey)
      continue;
    // A sparse tensor is not a variable for TensorFlow: the graph omits it.
    if (!graph_ || graph_->variables().contains(name) || view_.is_sparse(name))
      names.push_back(name);
  }
  return names;
}

bool SavedValues::is_of_a_run() const {
  const std::vector<std::string>& names = view_.names();
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return name != kGraphName && is_outside_graph(name);
  });
}

std::optional<int64_t> SavedValues::save_counter() {
  const auto name = find(std::string(kCounterKey));
  if (!name || form(*name) != ValueForm{*type_number(at::kLong), {}}) return std::nullopt;
  return view_.read(*name).item<int64_t>();
}

}  // namespace lockstep::checkpoint
