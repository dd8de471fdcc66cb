#include "coord/data_map.h"

#include <algorithm>

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep::coord {
namespace {

// Names of the alternatives of DataValue, in their order.
constexpr const char* kKinds[] = {"a tensor", "strings", "a map"};

/// Returns the value if it exists and has this kind.
template <typename Kind>
const Kind& value_of(const DataMap& map, const std::string& key, const char* wanted) {
  const DataValue* const value = map.find(key);
  if (value == nullptr)
    refuse_data(
        fmt::format("no key '{}': a callback gets the keys that its incoming_keys() declare, and "
                    "optional ones if present",
                    key));
  if (const Kind* const found = std::get_if<Kind>(value)) return *found;
  refuse_data(fmt::format("key '{}' is {}, expected {}", key, kKinds[value->index()], wanted));
}

using Texts = std::vector<std::string>;
using InnerMap = std::shared_ptr<const DataMap>;

/// Collects the leaves of nested maps with their paths.
void flatten(const DataMap& map, std::vector<std::string>* path, std::vector<FlatValue>* found) {
  for (const auto& [key, value] : map.values()) {
    path->push_back(key);
    if (const InnerMap* const inner = std::get_if<InnerMap>(&value))
      flatten(**inner, path, found);
    else
      found->push_back({*path, &value});
    path->pop_back();
  }
}

/// Returns the size of dimension 0, or the number of texts.
int64_t batch_size(const FlatValue& flat) {
  if (const Texts* const texts = std::get_if<Texts>(flat.value))
    return static_cast<int64_t>(texts->size());
  const at::Tensor& tensor = std::get<at::Tensor>(*flat.value);
  if (tensor.dim() == 0)
    refuse_data(
        fmt::format("key '{}' is one number, which cannot be split into samples; name it in "
                    "not_batch_keys",
                    path_text(flat)));
  return tensor.size(0);
}

/// Returns the batch size; throws if the values have different ones.
int64_t common_batch_size(const std::vector<FlatValue>& values) {
  for (const FlatValue& value : values)
    if (batch_size(value) != batch_size(values.front()))
      refuse_data(
          fmt::format("key '{}' holds {} samples and key '{}' {}; name those that are not "
                      "by sample in not_batch_keys",
                      path_text(values.front()), batch_size(values.front()), path_text(value),
                      batch_size(value)));
  return values.empty() ? 0 : batch_size(values.front());
}

/// Returns a batch's value in the form for splitting.
DataValue prepared(const DataValue& value) {
  if (const at::Tensor* const tensor = std::get_if<at::Tensor>(&value)) return on_cpu(*tensor);
  return value;
}

/// Returns element i of a batch's value.
DataValue sample_of(const DataValue& batch, int64_t i) {
  if (const at::Tensor* const tensor = std::get_if<at::Tensor>(&batch)) return tensor->select(0, i);
  return Texts{std::get<Texts>(batch)[static_cast<size_t>(i)]};
}

struct BatchValue {
  std::vector<std::string> path;
  DataValue value;
};

/// Restores the nesting from `depth` on. Values with a common start of their paths are adjacent.
DataMap nested_sample(const BatchValue* begin, const BatchValue* end, size_t depth, int64_t i) {
  DataMap sample;
  while (begin != end) {
    const std::string& key = begin->path[depth];
    if (begin->path.size() == depth + 1) {
      sample.put(key, sample_of(begin->value, i));
      ++begin;
      continue;
    }
    const BatchValue* next = begin;
    while (next != end && next->path[depth] == key) ++next;
    sample.put(key, std::make_shared<const DataMap>(nested_sample(begin, next, depth + 1, i)));
    begin = next;
  }
  return sample;
}

/// Describes a value for a message; null: there is none.
std::string described(const DataValue* value) {
  if (value == nullptr) return "missing";
  const at::Tensor* const tensor = std::get_if<at::Tensor>(value);
  if (tensor == nullptr) return kKinds[value->index()];
  return fmt::format("{} [{}]", toString(tensor->scalar_type()), fmt::join(tensor->sizes(), ", "));
}

bool may_join(const DataValue* first, const DataValue* other, bool stacks) {
  if (first == nullptr || other == nullptr || first->index() != other->index()) return false;
  const at::Tensor *const a = std::get_if<at::Tensor>(first), *b = std::get_if<at::Tensor>(other);
  if (a == nullptr) return true;
  if (stacks) return a->sizes() == b->sizes();
  return b->dim() > 0 && a->dim() == b->dim() && a->scalar_type() == b->scalar_type() &&
         a->sizes().slice(1) == b->sizes().slice(1);
}

/// Joins values that may be joined.
DataValue joined(const std::vector<const DataValue*>& values, const JoinOptions& options) {
  std::vector<at::Tensor> tensors;
  Texts texts;
  std::vector<const DataMap*> maps;
  for (const DataValue* const value : values) {
    if (const at::Tensor* const tensor = std::get_if<at::Tensor>(value))
      tensors.push_back(*tensor);
    else if (const Texts* const more = std::get_if<Texts>(value))
      texts.insert(texts.end(), more->begin(), more->end());
    else
      maps.push_back(std::get<InnerMap>(*value).get());
  }
  if (!tensors.empty()) return options.stacks ? at::stack(tensors) : at::cat(tensors);
  if (maps.empty()) return texts;
  return std::make_shared<const DataMap>(joined_maps(maps, options));
}

}  // namespace

const at::Tensor& DataMap::tensor(const std::string& key) const {
  return value_of<at::Tensor>(*this, key, kKinds[0]);
}

const std::vector<std::string>& DataMap::texts(const std::string& key) const {
  return value_of<std::vector<std::string>>(*this, key, kKinds[1]);
}

const DataMap& DataMap::map(const std::string& key) const {
  return *value_of<std::shared_ptr<const DataMap>>(*this, key, kKinds[2]);
}

at::Tensor on_cpu(const at::Tensor& tensor) { return tensor.detach().cpu().contiguous(); }

std::vector<FlatValue> flat_values(const DataMap& map) {
  std::vector<FlatValue> found;
  std::vector<std::string> path;
  flatten(map, &path, &found);
  return found;
}

std::string path_text(const FlatValue& value) {
  return fmt::format("{}", fmt::join(value.path, "/"));
}

std::vector<DataMap> split_batch_inputs(const DataMap& batch,
                                        const std::vector<std::string>& not_batch_keys) {
  // Keys of not_batch_keys are added to each sample at the end.
  DataMap whole, divided;
  for (const auto& [key, value] : batch.values()) {
    const bool is_whole =
        std::find(not_batch_keys.begin(), not_batch_keys.end(), key) != not_batch_keys.end();
    (is_whole ? whole : divided).put(key, value);
  }
  const std::vector<FlatValue> flat = flat_values(divided);
  const int64_t num_samples = common_batch_size(flat);
  std::vector<BatchValue> values;
  // Copied to the CPU once per batch, not once per sample.
  for (const FlatValue& value : flat) values.push_back({value.path, prepared(*value.value)});
  std::vector<DataMap> samples;
  for (int64_t i = 0; i < num_samples; ++i) {
    samples.push_back(nested_sample(values.data(), values.data() + values.size(), 0, i));
    for (const auto& [key, value] : whole.values()) samples.back().put(key, value);
  }
  return samples;
}

DataMap joined_maps(const std::vector<const DataMap*>& parts, const JoinOptions& options) {
  DataMap all;
  for (const DataMap* const part : parts)
    for (const auto& [key, value] : part->values()) {
      if (all.contains(key)) continue;
      std::vector<const DataValue*> values;
      for (const DataMap* const other : parts) {
        values.push_back(other->find(key));
        if (!may_join(&value, values.back(), options.stacks))
          throw Error(ExitCode::kBadData, options.area,
                      fmt::format("'{}' of {} cannot be joined: one is {}, number {} is {}", key,
                                  options.parts_are, described(&value), values.size(),
                                  described(values.back())));
      }
      all.put(key, joined(values, options));
    }
  return all;
}

}  // namespace lockstep::coord
