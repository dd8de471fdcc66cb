// Objects of a Checkpoint, and their table.
#include "checkpoint/trackable.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "checkpoint/format/object_graph.h"

namespace lockstep::checkpoint {

// Adapters for tensors, random number generators and objects that list their state.

namespace {

/// State of a generator. It lists a copy, which becomes the generator's state after a restore has
/// written into it.
class RandomState final : public Trackable {
 public:
  explicit RandomState(at::Generator generator) : generator_(std::move(generator)) {
    if (!generator_.defined())
      throw Error(ExitCode::kConfig, "checkpoint",
                  "an undefined generator cannot be in a Checkpoint");
    copy_ = generator_.get_state().clone();
  }

  // The copy is refreshed on each call, because the generator moves on.
  StateList state(const TensorNames&) override {
    copy_.copy_(generator_.get_state());
    return {{.key = "", .tensor = copy_}};
  }
  void restored() override { generator_.set_state(copy_); }

 private:
  at::Generator generator_;
  at::Tensor copy_;
};

class ListedState final : public Trackable {
 public:
  ListedState(std::function<StateList()> state, std::function<StateList()> variables,
              DeferredVariables* late)
      : state_(std::move(state)), variables_(std::move(variables)), late_(late) {}

  StateList state(const TensorNames&) override { return state_(); }
  StateList variables() override { return variables_ ? variables_() : StateList(); }
  std::vector<LatePart> late_parts() override {
    return late_ == nullptr ? std::vector<LatePart>() : std::vector<LatePart>{{"", late_}};
  }
  /// Returns the key unchanged if it is whole already, as Lockstep's own parts list them:
  /// optimizer/fc1/weight/momentum.
  std::string whole_key(const std::string& root, const std::string& key) const override {
    return key.starts_with(root + "/") ? key : Trackable::whole_key(root, key);
  }

 private:
  std::function<StateList()> state_, variables_;
  DeferredVariables* late_;
};

}  // namespace

std::string Trackable::whole_key(const std::string& root, const std::string& key) const {
  if (key.empty()) return root;
  return is_outside_graph(key) ? key : root + "/" + key;
}

std::shared_ptr<Trackable> make_trackable(ForTracking, const at::Tensor& tensor) {
  if (!tensor.defined())
    throw Error(ExitCode::kConfig, "checkpoint",
                "an undefined tensor cannot be in a Checkpoint: add it once it exists");
  const auto list = [tensor] { return StateList{{.key = "", .tensor = tensor}}; };
  return make_trackable(list, list, nullptr);
}

std::shared_ptr<Trackable> make_trackable(ForTracking, StepClock& clock) {
  return make_trackable([&clock] { return StateList{{.key = "", .tensor = view_of(&clock.step)}}; },
                        nullptr, nullptr);
}

std::shared_ptr<Trackable> make_trackable(ForTracking, const at::Generator& generator) {
  return std::make_shared<RandomState>(generator);
}

std::shared_ptr<Trackable> make_trackable(std::function<StateList()> state,
                                          std::function<StateList()> variables,
                                          DeferredVariables* late) {
  return std::make_shared<ListedState>(std::move(state), std::move(variables), late);
}

// ObjectTable: maps between the keys of a Checkpoint and the state of its objects.

[[noreturn]] static void refuse_key(const std::string& key, const std::string& why) {
  throw Error(ExitCode::kUsage, "checkpoint",
              fmt::format("'{}' cannot be a key of a Checkpoint: {}", key, why));
}

bool ObjectTable::has_object(std::string_view key) const {
  return std::ranges::any_of(objects_, [&](const auto& each) { return each.first == key; });
}

// A slash separates the object's key from the names inside it.
void ObjectTable::add(std::string key, Tracked object) {
  if (key.empty()) refuse_key(key, "it is empty; name the object, such as 'model'");
  if (key.find('/') != std::string::npos)
    refuse_key(key, "it contains a '/', which separates the parts of a name");
  if (key == kCounterKey) refuse_key(key, "it is reserved for the save counter");
  if (is_outside_graph(key + "/")) refuse_key(key, "it is reserved for data outside the objects");
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

std::vector<LatePart> ObjectTable::late_parts() {
  std::vector<LatePart> parts;
  for (const auto& [root, object] : objects_)
    for (const LatePart& each : object->late_parts())
      parts.push_back({root + "/" + each.prefix, each.part});
  return parts;
}

std::vector<std::string> ObjectTable::keys_to_come() {
  std::vector<std::string> keys;
  for (const LatePart& late : late_parts())
    for (const std::string& name : late.part->names_to_come()) keys.push_back(late.prefix + name);
  return keys;
}

}  // namespace lockstep::checkpoint
