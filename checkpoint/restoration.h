#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/object_table.h"
#include "checkpoint/saved_values.h"

namespace lockstep::checkpoint {

/// One restore() under way: values that have found their variables, and those that wait for them.
/// One thread at a time, the one that makes variables.
class Restoration {
 public:
  Restoration(const std::string& prefix, std::shared_ptr<ObjectTable> objects);
  /// Says which values were never asked for, unless somebody has looked.
  ~Restoration();
  Restoration(const Restoration&) = delete;
  Restoration& operator=(const Restoration&) = delete;

  /// Gives every variable that exists and has none yet its value, makes what objects can make, and
  /// watches their late parts. All forms are checked before the first value is written. Throws
  /// Error(kBadData).
  void match();
  /// The same, only if it leaves nothing over on either side among the tracked objects; else
  /// nothing is written. Throws Error(kBadData) naming what is over.
  void match_strictly();

  /// Saved values that no variable has taken.
  std::vector<std::string> unused() const;
  /// Variables that exist, or are known to come, for which the save has no value.
  std::vector<std::string> missing() const;
  /// Variables that exist for which the save has no value.
  std::vector<std::string> missing_existing() const;
  /// Nobody is to be warned of unused values any more.
  void has_been_looked_at() { looked_at_ = true; }
  /// Another restore takes its place: it writes nothing any more.
  void stop();

  SavedValues& values() { return values_; }

 private:
  /// What is to be written, found and checked, by name in the index.
  std::map<std::string, StateEntry> matches();
  void make_what_objects_can();
  void take(const std::map<std::string, StateEntry>& matches);
  void watch_late_parts();
  void created(const std::string& key, const at::Tensor& tensor);

  SavedValues values_;
  const std::shared_ptr<ObjectTable> objects_;
  std::set<std::string> taken_;  // names in the index
  std::map<const LateTensors*, std::shared_ptr<void>> watches_;
  bool looked_at_ = false;
  bool stopped_ = false;
};

}  // namespace lockstep::checkpoint
