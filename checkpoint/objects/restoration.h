#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/objects/object_table.h"
#include "checkpoint/restore/saved_values.h"

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
  /// watches their late parts. The variables under the keys of `except` stay as they are. All
  /// forms are checked before the first value is written. Throws Error(kBadData, kIo): then each
  /// variable is wholly old or wholly new.
  void match(const std::set<std::string>& except = {});
  /// What a strict load writes: every variable finds its value and every value of the tracked
  /// objects its variable. Writes nothing. Throws Error(kBadData) naming what is over.
  std::vector<NamedEntry> strict_matches();
  /// What match() writes, found and checked. Writes nothing yet.
  std::vector<NamedEntry> matches(const std::set<std::string>& except = {});
  /// Writes what was found, and watches late parts.
  void start(const std::vector<NamedEntry>& matches);
  /// Writes what was found. An error leaves each variable wholly old or wholly new; what objects
  /// made for it is gone.
  void take(const std::vector<NamedEntry>& matches);

  /// Saved values that no variable has taken.
  std::vector<std::string> unused() const;
  /// Variables that exist and have not been given the value that the save has for them: they were
  /// made after the last match(), unannounced.
  std::vector<std::string> not_given() const;
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
  void make_what_objects_can();
  void discard_made();
  std::vector<NamedEntry> find_matches(const std::set<std::string>& except);
  void watch_late_parts();
  void created(const std::string& key, const at::Tensor& tensor);

  SavedValues values_;
  const std::shared_ptr<ObjectTable> objects_;
  std::set<std::string> taken_;  // names in the index of values that a variable has
  std::set<std::string> given_;  // keys of variables that have their value
  std::map<const DeferredVariables*, std::shared_ptr<void>> watches_;
  std::set<std::string> met_;  // keys of objects
  bool has_made_ = false;      // objects have made what has no value yet
  bool looked_at_ = false;
  bool stopped_ = false;
};

}  // namespace lockstep::checkpoint
