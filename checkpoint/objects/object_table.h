#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/tensors/state_list.h"
#include "checkpoint/objects/trackable.h"

namespace lockstep::checkpoint {

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

  struct Late {
    std::string prefix;  ///< before its names: "model/fc1/"
    DeferredVariables* part;
  };
  std::vector<Late> late_parts();
  /// Returns the whole keys of tensors that late parts still have to create.
  std::vector<std::string> keys_to_come();

 private:
  TensorNames names();

  std::vector<std::pair<std::string, Tracked>> objects_;
};

}  // namespace lockstep::checkpoint
