// Finds the values of keys in checkpoints of all writers. It uses the object graph, our naming
// rule, or plain variable names.
#include "checkpoint/restore/saved_values.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

#include "base/error.h"
#include "checkpoint/bundle/tensor_type.h"
#include "checkpoint/files/save_files.h"
#include "checkpoint/files/state_names.h"

namespace lockstep::checkpoint {

namespace {

constexpr int64_t kMaxGraphBytes = int64_t{64} << 20;  // some million variables

}  // namespace

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
  try {
    graph_.emplace(reader_.read_text(graph));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& fault) {
    reader_.refuse(graph, fault.what());
  }
}

std::optional<std::string> SavedValues::find(const std::string& key) const {
  std::string name = index_name(key);
  if (graph_ && !is_beside_graph(key)) name = graph_->find(key).value_or(name);
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
  check(entry.has_value(), "the form of a value that is not there was asked for");
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
    if (name == kGraphName || is_beside_graph(name) || name == index_name(kCounterKey) ||
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
    return name != kGraphName && is_beside_graph(name);
  });
}

std::optional<int64_t> SavedValues::save_counter() {
  const auto name = find(std::string(kCounterKey));
  if (!name || form(*name) != ValueForm{*type_number(at::kLong), {}}) return std::nullopt;
  return view_.read(*name).item<int64_t>();
}

}  // namespace lockstep::checkpoint
