// A sparse tensor consists of two tensors: kept values and a form text, which names the mask.
// Everything else is passed on to the BundleReader.
#include "checkpoint/reader/dense_view.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/bits/bit_mask.h"
#include "checkpoint/bundle/tensor_type.h"
#include "checkpoint/files/state_names.h"

namespace lockstep::checkpoint {
namespace {

constexpr int64_t kMaxFormBytes = 65536;

/// Returns the bytes of a tensor or of all its slices.
int64_t stored_bytes(const BundleEntry& entry) {
  int64_t sum = entry.is_sliced() ? 0 : entry.num_bytes;
  for (const BundleSlice& slice : entry.slices) sum += slice.num_bytes;
  return sum;
}

/// Returns the bytes of an element; 0 for types that are not read.
int64_t item_bytes(int32_t dtype) {
  const auto type = scalar_type(dtype);
  return type ? static_cast<int64_t>(c10::elementSize(*type)) : 0;
}

/// True for a type that masks can prune (base/bits/bit_mask.h).
bool is_prunable(const BundleEntry& values) {
  const int64_t bytes = item_bytes(values.dtype);
  return values.shape.size() == 1 && (bytes == 2 || bytes == 4 || bytes == 8);
}

DenseTensor whole_tensor(const BundleEntry& entry) {
  const int64_t stored = stored_bytes(entry);
  return {entry.dtype, entry.shape, &entry, "", stored, stored};
}

}  // namespace

DenseView::DenseView(BundleReader* reader) : reader_(*reader) {
  for (const auto& [name, entry] : reader_.index().entries)
    // The form texts are found by their names; each leads to values and mask.
    if (const auto key = key_of_sparse_form(name)) {
      add_sparse(*key, name);
      parts_.insert({name, sparse_values_name(*key)});
    }
  for (const auto& [name, tensor] : sparse_)
    if (reader_.find(name) != nullptr)
      reader_.refuse(name, "is saved twice, whole and as the values that a mask keeps");
  for (const auto& [name, entry] : reader_.index().entries)
    if (!parts_.contains(name)) names_.push_back(name);
  for (const auto& [name, tensor] : sparse_) names_.push_back(name);
  std::sort(names_.begin(), names_.end());
}

SparseForm DenseView::form_at(const std::string& form_name) {
  const BundleEntry& entry = *reader_.find(form_name);
  if (entry.dtype != kStringType || entry.num_elements() != 1 || entry.num_bytes > kMaxFormBytes)
    reader_.refuse(form_name, "is no short text");
  const std::string text = reader_.read_text(form_name);
  std::optional<SparseForm> form = parse_sparse_form(text);
  if (!form) reader_.refuse(form_name, fmt::format("'{}' is not as '[64, 128] MASK'", text));
  return std::move(*form);
}

void DenseView::add_sparse(const std::string& key, const std::string& form_name) {
  SparseForm form = form_at(form_name);
  const std::string values_name = sparse_values_name(key);
  for (const std::string& needed : {values_name, form.mask_name})
    if (reader_.find(needed) == nullptr)
      reader_.refuse(form_name, fmt::format("needs '{}', which the save does not hold", needed));
  const BundleEntry& values = *reader_.find(values_name);
  const BundleEntry& mask = *reader_.find(form.mask_name);
  const int64_t num_elements = form.num_elements();
  if (!is_prunable(values) || values.num_elements() > num_elements)
    reader_.refuse(values_name, fmt::format("is {}, which no mask leaves of [{}]",
                                            type_and_shape(values.dtype, values.shape),
                                            fmt::join(form.shape, ", ")));
  if (mask.dtype != type_number(at::kByte) || mask.num_elements() != num_mask_bytes(num_elements))
    reader_.refuse(form.mask_name,
                   fmt::format("does not hold a bit for each of {} elements", num_elements));
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
  return whole_tensor(*entry);
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
    reader_.refuse(tensor.mask_name, "has bits behind the last element");
  const int64_t num_kept = kept_before(bits, num_elements);
  if (num_kept != tensor.entry->num_elements())
    reader_.refuse(tensor.mask_name, fmt::format("keeps {} elements, but the save has {} of '{}'",
                                                 num_kept, tensor.entry->num_elements(), name));
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

}  // namespace lockstep::checkpoint
