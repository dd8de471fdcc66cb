#pragma once

#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "base/step_clock.h"
#include "base/tensors/deferred_variables.h"
#include "base/tensors/params.h"
#include "base/tensors/state_list.h"

/// What a Checkpoint can hold, and how foreign objects become that.
namespace lockstep::checkpoint {

/// Keys of tensors that other objects refer to by identity: an optimizer names its slots after the
/// parameters of the model beside it.
using TensorNames = std::map<const at::TensorImpl*, std::string>;

/// A part of an object that makes tensors later; their names stand behind `prefix` ("fc1/", "").
struct LatePart {
  std::string prefix;
  DeferredVariables* part;
};

/// The state of one object under one key of a Checkpoint. One thread at a time.
class Trackable {
 public:
  virtual ~Trackable() = default;

  /// What exists now, live memory. Keys are relative to the object, "" for the object itself; those
  /// under _lockstep/ stand beside the graph as they are.
  virtual StateList state(const TensorNames& names) = 0;
  /// Those entries of state() that others may name by identity: the tensors must be the very ones
  /// that the others hold.
  virtual StateList variables() { return {}; }
  /// Makes what it would make by itself later and a save holds a value for already (an optimizer's
  /// slots), so that it can take the value now. `is_saved` tells of a relative key. `is_first` at
  /// the first time in a restore, when nothing of it has been written yet: what exists and the save
  /// lacks may then go. restored() or discard_made() follows.
  virtual void make_saved(const std::function<bool(const std::string&)>& /*is_saved*/,
                          const TensorNames& /*names*/, bool /*is_first*/) {}
  /// Takes back what make_saved() did: the restore failed, and nothing is to have changed.
  virtual void discard_made() {}
  /// Called after a restore wrote into tensors that state() listed: for an object whose state is
  /// not itself a tensor, which lists a copy.
  virtual void restored() {}
  /// Its parts that announce new tensors.
  virtual std::vector<LatePart> late_parts() { return {}; }
  /// The whole key of an entry of an object under key `root`.
  virtual std::string whole_key(const std::string& root, const std::string& key) const;
};

/// Makes overloads of make_trackable() visible by argument-dependent look-up, so that a header for
/// another kind of object only has to add one to this namespace (checkpoint/objects/torch_objects.h
/// does).
struct ForTracking {};

/// One tensor; it keeps the memory.
std::shared_ptr<Trackable> make_trackable(ForTracking, const at::Tensor& tensor);
/// The clock's step, one int64. The clock must outlive the Checkpoint.
std::shared_ptr<Trackable> make_trackable(ForTracking, StepClock& clock);
/// The state of a random number generator, uint8, as its get_state() gives it. Kept.
std::shared_ptr<Trackable> make_trackable(ForTracking, const at::Generator& generator);
inline std::shared_ptr<Trackable> make_trackable(ForTracking, std::shared_ptr<Trackable> object) {
  return object;
}
/// Whatever lists its state: keys relative to the object, or whole ones that begin with its key.
/// `variables` may be null, `late` too.
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

/// An object as a Checkpoint takes it; made from anything for which make_trackable() has an
/// overload. Objects passed by reference must outlive it, shared pointers are kept.
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

}  // namespace lockstep::checkpoint
