// Maps between the keys of a Checkpoint and the state of its objects.
#include "checkpoint/objects/object_table.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "checkpoint/files/state_names.h"

namespace lockstep::checkpoint {
namespace {

[[noreturn]] void refuse_key(const std::string& key, const std::string& why) {
  throw Error(ExitCode::kUsage, "checkpoint",
              fmt::format("'{}' cannot be a key of a Checkpoint: {}", key, why));
}

}  // namespace

bool ObjectTable::has_object(std::string_view key) const {
  return std::any_of(objects_.begin(), objects_.end(),
                     [&](const auto& each) { return each.first == key; });
}

// A slash separates the object's key from the names inside it.
void ObjectTable::add(std::string key, Tracked object) {
  if (key.empty()) refuse_key(key, "it is empty; name the object, such as 'model'");
  if (key.find('/') != std::string::npos)
    refuse_key(key, "it holds a '/', which stands between the parts of a name");
  if (key == kCounterKey) refuse_key(key, "saves count themselves under it");
  if (is_beside_graph(key + "/")) refuse_key(key, "it is kept for what stands beside the objects");
  if (has_object(key)) refuse_key(key, "another object has it");
  objects_.emplace_back(std::move(key), std::move(object));
}

TensorNames ObjectTable::names() {
  TensorNames names;
  // Tensors by identity: an optimizer names its slots after another object's parameters.
  for (const auto& [root, object] : objects_)
    for (const StateEntry& entry : object->variables())
      names.emplace(entry.tensor.unsafeGetTensorImpl(), object->whole_key(root, entry.key));
  return names;
}

void ObjectTable::restored(const std::set<std::string>& keys) {
  for (const auto& [root, object] : objects_) {
    const auto below = keys.lower_bound(root + "/");
    if (keys.contains(root) || (below != keys.end() && below->starts_with(root + "/")))
      object->restored();
  }
}

StateList ObjectTable::state() {
  const TensorNames known = names();
  StateList all;
  for (const auto& [root, object] : objects_)
    for (StateEntry& entry : object->state(known)) {
      entry.key = object->whole_key(root, entry.key);
      if (entry.tensor.defined()) entry.tensor = entry.tensor.detach();
      all.push_back(std::move(entry));
    }
  return all;
}

void ObjectTable::make_saved(const std::function<bool(const std::string&)>& is_saved,
                             std::set<std::string>* met) {
  const TensorNames known = names();
  for (const auto& [root, object] : objects_)
    object->make_saved(
        [&, &root = root, &object = object](const std::string& key) {
          return is_saved(object->whole_key(root, key));
        },
        known, met->insert(root).second);
}

void ObjectTable::discard_made() {
  for (const auto& [root, object] : objects_) object->discard_made();
}

std::vector<ObjectTable::Late> ObjectTable::late_parts() {
  std::vector<Late> parts;
  for (const auto& [root, object] : objects_)
    for (const LatePart& each : object->late_parts())
      parts.push_back({root + "/" + each.prefix, each.part});
  return parts;
}

std::vector<std::string> ObjectTable::keys_to_come() {
  std::vector<std::string> keys;
  for (const Late& late : late_parts())
    for (const std::string& name : late.part->names_to_come()) keys.push_back(late.prefix + name);
  return keys;
}

}  // namespace lockstep::checkpoint
