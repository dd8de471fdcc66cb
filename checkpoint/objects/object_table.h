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

/// The objects of a Checkpoint by key. One thread at a time.
class ObjectTable {
 public:
  /// Throws Error(kUsage) for a key that is empty, taken, or holds a slash.
  void add(std::string key, Tracked object);

  /// Everything that exists, under whole keys, detached.
  StateList state();
  /// Tells the objects of these whole keys that a restore has written into what state() listed.
  void restored(const std::set<std::string>& keys);
  bool has_object(std::string_view key) const;
  /// Lets the objects make what they can of what is saved; `is_saved` tells of a whole key. `met`
  /// holds the keys of the objects that this restore has met before, and gains the others.
  void make_saved(const std::function<bool(const std::string&)>& is_saved,
                  std::set<std::string>* met);
  /// Takes back what they made.
  void discard_made();

  struct Late {
    std::string prefix;  ///< before its names: "model/fc1/"
    DeferredVariables* part;
  };
  std::vector<Late> late_parts();
  /// Whole keys of tensors that late parts have still to make.
  std::vector<std::string> keys_to_come();

 private:
  TensorNames names();

  std::vector<std::pair<std::string, Tracked>> objects_;
};

}  // namespace lockstep::checkpoint
