// Samples are stacked to a state per rank; the states of several ranks are concatenated.
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "coord/buffers/buffer.h"

namespace lockstep::coord {
namespace {

using Texts = std::vector<std::string>;
using InnerMap = std::shared_ptr<const DataMap>;
using Join = at::Tensor (*)(const std::vector<at::Tensor>&);

// A state stacks samples along a new dimension; states of ranks are joined along it.
at::Tensor stacked(const std::vector<at::Tensor>& tensors) { return at::stack(tensors); }
at::Tensor in_a_row(const std::vector<at::Tensor>& tensors) { return at::cat(tensors); }

DataMap join_maps(const std::vector<const DataMap*>& maps, Join join);

/// Returns the values of one key; each must be of this kind.
template <typename Kind>
std::vector<const Kind*> all_of(const std::string& key, const std::vector<const DataMap*>& maps) {
  std::vector<const Kind*> found;
  for (const DataMap* const map : maps) {
    const DataValue* const value = map->find(key);
    const Kind* const of_kind = value == nullptr ? nullptr : std::get_if<Kind>(value);
    if (of_kind == nullptr)
      throw Error(
          ExitCode::kBadData, "callbacks",
          fmt::format("key '{}' is not in each of {} samples that were collected, or not of "
                      "one kind",
                      key, maps.size()));
    found.push_back(of_kind);
  }
  return found;
}

/// Joins tensors; they must have the same shape apart from the number of samples.
DataValue join_tensors(const std::string& key, const std::vector<const at::Tensor*>& tensors,
                       Join join) {
  std::vector<at::Tensor> all;
  for (const at::Tensor* const tensor : tensors) {
    const bool is_row = join == &in_a_row && tensor->dim() > 0;  // dimension 0 is the count
    const at::IntArrayRef first = tensors.front()->sizes(), other = tensor->sizes();
    if (other.slice(is_row ? 1 : 0) != first.slice(is_row && !first.empty() ? 1 : 0))
      throw Error(
          ExitCode::kBadData, "callbacks",
          fmt::format("key '{}' has the shape [{}] in one sample that was collected and [{}] "
                      "in another",
                      key, fmt::join(first, ", "), fmt::join(other, ", ")));
    all.push_back(*tensor);
  }
  return join(all);
}

/// Joins the values of one key by their kind.
DataValue join_values(const std::string& key, const std::vector<const DataMap*>& maps, Join join) {
  const DataValue* const first = maps.front()->find(key);
  if (first == nullptr || std::holds_alternative<at::Tensor>(*first))
    return join_tensors(key, all_of<at::Tensor>(key, maps), join);
  if (std::holds_alternative<Texts>(*first)) {
    Texts joined;
    for (const Texts* const texts : all_of<Texts>(key, maps))
      joined.insert(joined.end(), texts->begin(), texts->end());
    return joined;
  }
  std::vector<const DataMap*> inner;
  for (const InnerMap* const map : all_of<InnerMap>(key, maps)) inner.push_back(map->get());
  return std::make_shared<const DataMap>(join_maps(inner, join));
}

DataMap join_maps(const std::vector<const DataMap*>& maps, Join join) {
  DataMap joined;
  for (const DataMap* const map : maps)  // all_of() refuses a key that one of them lacks
    for (const auto& [key, value] : map->values())
      if (!joined.contains(key)) joined.put(key, join_values(key, maps, join));
  return joined;
}

}  // namespace

void ListBuffer::add(const DataMap& sample) { samples_.push_back(sample); }

DataMap ListBuffer::state() const {
  std::vector<const DataMap*> samples;
  for (const DataMap& sample : samples_) samples.push_back(&sample);
  return join_maps(samples, &stacked);
}

DataMap ListBuffer::joined(std::span<const DataMap> states) const {
  std::vector<const DataMap*> filled;
  // A rank without samples has an empty state.
  for (const DataMap& state : states)
    if (!state.empty()) filled.push_back(&state);
  return join_maps(filled, &in_a_row);
}

void RingBuffer::add(const DataMap& sample) {
  ListBuffer::add(sample);
  if (num_samples() > capacity_) drop_first();
}

}  // namespace lockstep::coord
