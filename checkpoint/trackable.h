#pragma once

#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "base/step_clock.h"
#include "base/tensors/params.h"
#include "base/tensors/state_list.h"

/// Objects that a Checkpoint can hold, adapters for foreign ones, and the table of a Checkpoint.
namespace lockstep::checkpoint {

/// Keys of tensors that other objects refer to by identity. For instance, an optimizer names its
/// slots after the model's parameters.
using TensorNames = std::map<const at::TensorImpl*, std::string>;

/// Part of an object that creates tensors later; `prefix` ("fc1/", "") precedes their names.
struct LatePart {
  std::string prefix;
  DeferredVariables* part;
};

/// State of one object under one key of a Checkpoint. One thread at a time.
class Trackable {
 public:
  virtual ~Trackable() = default;

  /// Returns what exists now, as live memory. Keys are relative to the object, "" for the object
  /// itself. Keys under _lockstep/ are used unchanged, outside the graph.
  virtual StateList state(const TensorNames& names) = 0;
  /// Returns those entries of state() that other objects may name by identity. The tensors must be
  /// the same objects that the others hold.
  virtual StateList variables() { return {}; }
  /// Creates in advance what the object would create later and the checkpoint has a value for (an
  /// optimizer's slots). So it can take the value now. `is_saved` answers for a relative key.
  /// `is_first` is true on the first call of a restore, before any of the object's state is
  /// written. Existing state that the checkpoint lacks may then be removed. restored() or
  /// discard_made() follows.
  virtual void make_saved(const std::function<bool(const std::string&)>& /*is_saved*/,
                          const TensorNames& /*names*/, bool /*is_first*/) {}
  /// Undoes make_saved() after a failed restore.
  virtual void discard_made() {}
  /// Notifies that a restore wrote into tensors of state(). Needed by an object whose state is not
  /// a tensor and which lists a copy.
  virtual void restored() {}
  /// Returns the parts that announce new tensors.
  virtual std::vector<LatePart> late_parts() { return {}; }
  /// Returns the whole key of an entry of an object with key `root`.
  virtual std::string whole_key(const std::string& root, const std::string& key) const;
};

/// Tag that makes overloads of make_trackable() visible by argument-dependent lookup. So a header
/// for another kind of object only has to add an overload to this namespace (see
/// checkpoint/torch_objects.h).
struct ForTracking {};

/// Tracks one tensor and keeps its memory alive.
std::shared_ptr<Trackable> make_trackable(ForTracking, const at::Tensor& tensor);
/// Tracks the clock's step, one int64. The clock must outlive the Checkpoint.
std::shared_ptr<Trackable> make_trackable(ForTracking, StepClock& clock);
/// Tracks the state of a random number generator, uint8, as its get_state() gives it. The generator
/// is kept alive.
std::shared_ptr<Trackable> make_trackable(ForTracking, const at::Generator& generator);
inline std::shared_ptr<Trackable> make_trackable(ForTracking, std::shared_ptr<Trackable> object) {
  return object;
}
/// Tracks anything that lists its state. Keys are relative to the object, or whole keys that begin
/// with its key. `variables` and `late` may be null.
std::shared_ptr<Trackable> make_trackable(std::function<StateList()> state,
                                          std::function<StateList()> variables,
                                          DeferredVariables* late);

/// Anything with `StateList state()`, as Lockstep's optimizers have.
template <typename T>
concept ListsItsState = requires(T& object) {
  { object.state() } -> std::convertible_to<StateList>;
};
/// Anything with `params()` and `buffers()`, as Lockstep's models have.
template <typename T>
concept HasParamTable = requires(T& object) {
  { object.params() } -> std::convertible_to<const ParamTable&>;
  object.buffers();
};

template <typename T>
DeferredVariables* late_part_of(T& object) {
  if constexpr (std::is_polymorphic_v<T>)
    return dynamic_cast<DeferredVariables*>(&object);
  else
    return nullptr;
}

/// The object must outlive the Checkpoint.
template <ListsItsState T>
std::shared_ptr<Trackable> make_trackable(ForTracking, T& object) {
  return make_trackable([&object] { return object.state(); }, nullptr, late_part_of(object));
}

/// The object must outlive the Checkpoint.
template <HasParamTable T>
std::shared_ptr<Trackable> make_trackable(ForTracking, T& object) {
  const auto variables = [&object] {
    StateList list;
    for (const Param& param : object.params())
      list.push_back({.key = slashed(param.name), .tensor = param.tensor});
    return list;
  };
  const auto state = [&object, variables] {
    StateList list = variables();
    for (const auto& buffer : object.buffers())
      list.push_back({.key = slashed(buffer.name), .tensor = buffer.tensor});
    return list;
  };
  return make_trackable(state, variables, late_part_of(object));
}

/// Object in the form that a Checkpoint takes, made from anything with an overload of
/// make_trackable(). Objects passed by reference must outlive it; shared pointers are kept.
class Tracked {
 public:
  template <typename T>
  requires(!std::same_as<std::remove_cvref_t<T>, Tracked>)
      Tracked(T&& object)  // NOLINT: meant to convert
      : object_(make_trackable(ForTracking{}, std::forward<T>(object))) {}

  Trackable& operator*() const { return *object_; }
  Trackable* operator->() const { return object_.get(); }

 private:
  std::shared_ptr<Trackable> object_;
};

/// Objects of a Checkpoint by key. One thread at a time.
class ObjectTable {
 public:
  /// Adds an object. Throws Error(kUsage) for a key that is empty, in use, or contains a slash.
  void add(std::string key, Tracked object);

  /// Returns all existing entries under whole keys, detached.
  StateList state();
  /// Notifies the objects of these whole keys that a restore has written into the tensors of
  /// state().
  void restored(const std::set<std::string>& keys);
  bool has_object(std::string_view key) const;
  /// Lets the objects create what the checkpoint has values for; `is_saved` answers for a whole
  /// key. `met` has the keys of objects that this restore has met before; the others are added to
  /// it.
  void make_saved(const std::function<bool(const std::string&)>& is_saved,
                  std::set<std::string>* met);
  /// Undoes make_saved().
  void discard_made();

  /// Returns the late parts with their whole prefixes: "model/fc1/".
  std::vector<LatePart> late_parts();
  /// Returns the whole keys of tensors that late parts still have to create.
  std::vector<std::string> keys_to_come();

 private:
  TensorNames names();

  std::vector<std::pair<std::string, Tracked>> objects_;
};

}  // namespace lockstep::checkpoint
