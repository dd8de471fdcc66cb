#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/objects/object_table.h"
#include "checkpoint/restore/saved_values.h"

namespace lockstep::checkpoint {

/// One restore() in progress: values that have found their variables, and values that wait for
/// them. One thread at a time, the one that creates variables.
class Restoration {
 public:
  Restoration(const std::string& prefix, std::shared_ptr<ObjectTable> objects);
  /// Logs a warning about unused values, unless has_been_looked_at() was called.
  ~Restoration();
  Restoration(const Restoration&) = delete;
  Restoration& operator=(const Restoration&) = delete;

  /// Gives its value to every existing variable that has none yet. Creates what objects can create,
  /// and watches their late parts. Variables with keys in `except` stay unchanged. All forms are
  /// checked before the first value is written. Throws Error(kBadData, kIo); then each variable is
  /// entirely old or entirely new.
  void match(const std::set<std::string>& except = {});
  /// Returns the matches of a strict load: every variable has a value, and the tracked objects'
  /// values all have variables. Writes nothing. Throws Error(kBadData) with the names of the rest.
  std::vector<NamedEntry> strict_matches();
  /// Returns the checked matches that match() would write. Writes nothing.
  std::vector<NamedEntry> matches(const std::set<std::string>& except = {});
  /// Writes the matches and watches late parts.
  void start(const std::vector<NamedEntry>& matches);
  /// Writes the matches. After an error each variable is entirely old or entirely new, and what
  /// objects created for it is discarded.
  void take(const std::vector<NamedEntry>& matches);

  /// Returns the saved values that no variable has taken.
  std::vector<std::string> unused() const;
  /// Returns the existing variables that have not got their saved value. They were created after
  /// the last match(), without announcement.
  std::vector<std::string> not_given() const;
  /// Returns the variables, existing or announced, that the checkpoint has no value for.
  std::vector<std::string> missing() const;
  /// Returns the existing variables that the checkpoint has no value for.
  std::vector<std::string> missing_existing() const;
  /// Suppresses the warning about unused values.
  void has_been_looked_at() { looked_at_ = true; }
  /// Ends this restore because another replaces it: it writes nothing afterwards.
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
  std::set<std::string> taken_;  // index names of values that a variable has taken
  std::set<std::string> given_;  // keys of variables that have their value
  std::map<const DeferredVariables*, std::shared_ptr<void>> watches_;
  std::set<std::string> met_;  // keys of objects that make_saved() has met
  bool has_made_ = false;      // objects have created what has no value yet
  bool looked_at_ = false;
  bool stopped_ = false;
};

}  // namespace lockstep::checkpoint
