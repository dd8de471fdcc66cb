#include "checkpoint/checkpoint.h"

#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/format/object_graph.h"
#include "checkpoint/format/rank_faults.h"
#include "checkpoint/format/saved_values.h"
#include "checkpoint/save/saver.h"

namespace lockstep::checkpoint {

// Restoration: matching and writing are separate steps. So with several ranks nothing is written
// before every rank has found its matches.

namespace {

std::string mismatch(const std::string& key, const ValueForm& saved, const ValueForm& live) {
  return fmt::format("'{}' is saved as {}, the variable is {}", key, saved.text(), live.text());
}

[[noreturn]] void refuse(const SavedValues& values, const std::string& what) {
  throw Error(ExitCode::kBadData, "checkpoint",
              fmt::format("{}: {}", index_path(values.prefix()), what));
}

}  // namespace

/// One restore() in progress: values that have found their variables, and values that wait for
/// them. One thread at a time, the one that creates variables.
class Restoration {
 public:
  Restoration(const std::string& prefix, std::shared_ptr<ObjectTable> objects)
      : values_(prefix), objects_(std::move(objects)) {}
  /// Logs a warning about unused values, unless has_been_looked_at() was called.
  ~Restoration() {
    discard_made();
    if (looked_at_) return;
    const std::vector<std::string> left = unused();
    if (left.empty()) return;
    log::warning("checkpoint",
                 fmt::format("{}: {} of its values were never used, the first is '{}'; the status "
                             "of restore() lists them, expect_partial() accepts them",
                             values_.prefix(), left.size(), left.front()));
  }

  Restoration(const Restoration&) = delete;
  Restoration& operator=(const Restoration&) = delete;

  /// Gives its value to every existing variable that has none yet. Creates what objects can create,
  /// and watches their late parts. Variables with keys in `except` stay unchanged. All forms are
  /// checked before the first value is written. Throws Error(kBadData, kIo); then each variable is
  /// entirely old or entirely new.
  void match(const std::set<std::string>& except = {}) {
    if (!stopped_) start(matches(except));
  }

  /// Returns the matches of a strict load: every variable has a value, and the tracked objects'
  /// values all have variables. Writes nothing. Throws Error(kBadData) with the names of the rest.
  std::vector<NamedEntry> strict_matches() {
    auto found = matches();
    std::set<std::string> used;
    for (const NamedEntry& each : found) used.insert(each.name);
    std::vector<std::string> over;
    for (const std::string& name : values_.variables()) {
      const std::string key = shown_name(name);
      if (objects_->has_object(key.substr(0, key.find('/'))) && !used.contains(name))
        over.push_back(key);
    }
    looked_at_ = true;
    const std::vector<std::string> to_come = objects_->keys_to_come();
    if (!to_come.empty())
      refuse(values_,
             fmt::format("'{}' do not exist yet: call the model once before load_weights_now(), or "
                         "use restore(), which restores them when they are created",
                         fmt::join(to_come, "', '")));
    if (const auto lacking = missing(); !lacking.empty())
      refuse(values_,
             fmt::format("contains no '{}'; nothing was restored", fmt::join(lacking, "', '")));
    if (!over.empty())
      refuse(values_, fmt::format("contains '{}', which has no variable; nothing was restored",
                                  fmt::join(over, "', '")));
    return found;
  }

  /// Returns the checked matches that match() would write. Writes nothing.
  std::vector<NamedEntry> matches(const std::set<std::string>& except = {}) {
    // On failure the objects must be as before, so that the next match() meets them for the first
    // time.
    const std::set<std::string> met = met_;
    try {
      make_what_objects_can();
      return find_matches(except);
    } catch (...) {
      discard_made();
      met_ = met;
      throw;
    }
  }

  /// Writes the matches and watches late parts.
  void start(const std::vector<NamedEntry>& matches) {
    take(matches);
    watch_late_parts();
  }

  /// Writes the matches. After an error each variable is entirely old or entirely new, and what
  /// objects created for it is discarded.
  void take(const std::vector<NamedEntry>& matches) {
    try {
      values_.read_all(matches);
    } catch (...) {
      discard_made();
      throw;
    }
    // From here on the created parts have values and must not be discarded.
    has_made_ = false;
    for (const NamedEntry& each : matches) {
      taken_.insert(each.name);
      given_.insert(each.entry.key);
    }
    std::set<std::string> written;
    for (const NamedEntry& each : matches) written.insert(each.entry.key);
    objects_->restored(written);
  }

  /// Returns the saved values that no variable has taken.
  std::vector<std::string> unused() const {
    std::vector<std::string> keys;
    for (const std::string& name : values_.variables())
      if (!taken_.contains(name)) keys.push_back(shown_name(name));
    return keys;
  }

  /// Returns the existing variables that have not got their saved value. They were created after
  /// the last match(), without announcement.
  std::vector<std::string> not_given() const {
    std::vector<std::string> keys;
    if (stopped_) return keys;
    for (const StateEntry& entry : objects_->state())
      if (!given_.contains(entry.key) && values_.find(entry.key)) keys.push_back(entry.key);
    return keys;
  }

  /// Returns the variables, existing or announced, that the checkpoint has no value for.
  std::vector<std::string> missing() const {
    std::vector<std::string> keys = missing_existing();
    for (const std::string& key : objects_->keys_to_come())
      if (!values_.find(key)) keys.push_back(key);
    return keys;
  }

  /// Returns the existing variables that the checkpoint has no value for.
  std::vector<std::string> missing_existing() const {
    std::vector<std::string> keys;
    for (const StateEntry& entry : objects_->state())
      if (!values_.find(entry.key)) keys.push_back(entry.key);
    return keys;
  }

  /// Suppresses the warning about unused values.
  void has_been_looked_at() { looked_at_ = true; }
  /// Ends this restore because another replaces it: it writes nothing afterwards.
  void stop() {
    discard_made();
    stopped_ = looked_at_ = true;
    watches_.clear();
  }

  SavedValues& values() { return values_; }

 private:
  void make_what_objects_can() {
    has_made_ = true;
    objects_->make_saved([this](const std::string& key) { return values_.find(key).has_value(); },
                         &met_);
  }

  void discard_made() {
    if (std::exchange(has_made_, false)) objects_->discard_made();
  }

  std::vector<NamedEntry> find_matches(const std::set<std::string>& except) {
    std::vector<NamedEntry> found;
    // All faults in one message, so that a user can correct them together.
    std::vector<std::string> faults;
    for (StateEntry& entry : objects_->state()) {
      const auto name = values_.find(entry.key);
      if (!name || given_.contains(entry.key) || except.contains(entry.key)) continue;
      if (values_.form(*name) != form_of(entry))
        faults.push_back(mismatch(entry.key, values_.form(*name), form_of(entry)));
      found.push_back({*name, std::move(entry)});
    }
    // The user sees this error; a warning about unused values would only repeat it.
    looked_at_ = looked_at_ || !faults.empty();
    if (!faults.empty())
      refuse(values_, fmt::format("{}; nothing was restored", fmt::join(faults, "; ")));
    return found;
  }

  void watch_late_parts() {
    for (const LatePart& late : objects_->late_parts())
      if (!watches_.contains(late.part))
        watches_[late.part] = late.part->watch(
            [this, prefix = late.prefix](const std::string& name, const at::Tensor& tensor) {
              created(prefix + name, tensor);
            });
  }

  // Runs inside the creation of a variable; its exception reaches the creator.
  void created(const std::string& key, const at::Tensor& tensor) {
    // Perhaps the value was taken before, by a variable whose creation failed.
    const auto name = values_.find(key);
    if (!name) return;
    const StateEntry entry{.key = key, .tensor = tensor.detach()};
    if (values_.form(*name) != form_of(entry))
      refuse(values_, mismatch(key, values_.form(*name), form_of(entry)) +
                          "; the variable was just created and keeps its initial value");
    take({{*name, entry}});
  }

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

// Checkpoint: every step that may fail on one rank runs in run_on_all(). So all ranks throw the
// same error, and none waits in the next collective.

/// Adds one kind of names to an error text.
static void add_part(const std::vector<std::string>& keys, std::string_view what,
                     std::string* text) {
  if (keys.empty()) return;
  *text += fmt::format("{}{} '{}'", text->empty() ? "" : "; ", what, fmt::join(keys, "', '"));
}

constexpr std::string_view kNotGiven =
    "variables created after restore() and not yet restored (call look_for_new()):";

/// Throws unless every existing variable has its value and, with `all`, nothing is left over.
static void require_restored(Restoration* restoration, bool all) {
  if (restoration == nullptr)
    throw Error(ExitCode::kBadData, "checkpoint",
                "restore() got no checkpoint, so nothing was restored");
  restoration->has_been_looked_at();
  std::string text;
  add_part(restoration->not_given(), kNotGiven, &text);
  if (all) add_part(restoration->unused(), "saved values without a variable:", &text);
  add_part(all ? restoration->missing() : restoration->missing_existing(),
           "variables without a saved value:", &text);
  if (!text.empty())
    throw Error(ExitCode::kBadData, "checkpoint",
                fmt::format("{}: {}", restoration->values().prefix(), text));
}

const RestoreStatus& RestoreStatus::assert_consumed() const {
  require_restored(restoration_.get(), true);
  return *this;
}

const RestoreStatus& RestoreStatus::assert_existing_objects_matched() const {
  require_restored(restoration_.get(), false);
  return *this;
}

const RestoreStatus& RestoreStatus::expect_partial() const {
  if (restoration_) restoration_->has_been_looked_at();
  return *this;
}

std::vector<std::string> RestoreStatus::pending() const {
  return restoration_ ? restoration_->unused() : std::vector<std::string>();
}
std::vector<std::string> RestoreStatus::missing() const {
  return restoration_ ? restoration_->missing() : std::vector<std::string>();
}

Checkpoint::Checkpoint(std::initializer_list<NamedObject> objects, CheckpointSetting setting)
    : setting_(setting),
      alone_(setting.ranks ? nullptr : std::make_unique<dist::SelfCommunicator>()),
      objects_(std::make_shared<ObjectTable>()) {
  for (const NamedObject& each : objects) objects_->add(each.key, each.object);
}

Checkpoint::~Checkpoint() = default;  // here Restoration and Saver are complete types

dist::Communicator& Checkpoint::ranks() { return setting_.ranks ? *setting_.ranks : *alone_; }

// Only a restore in progress needs the keys that exist already.
void Checkpoint::add(std::string key, Tracked object) {
  run_on_all(ranks(), [&] {
    std::set<std::string> known;
    // Existing variables keep their values: they may have been trained since the restore.
    if (restoration_)
      for (const StateEntry& entry : objects_->state()) known.insert(entry.key);
    objects_->add(std::move(key), std::move(object));
    if (restoration_) restoration_->match(known);
  });
}

void Checkpoint::look_for_new() {
  if (restoration_) restoration_->match();
}

void Checkpoint::stop_restoring() {
  if (restoration_) restoration_->stop();  // a RestoreStatus may keep it alive
  restoration_.reset();
}

/// Throws unless all ranks have the same variables. Layers that take their shape from their input
/// may differ.
void Checkpoint::require_equal_forms() {
  std::string forms;
  run_on_all(ranks(), [&] {
    for (const StateEntry& entry : objects_->state())
      forms += fmt::format("{} {}\n", entry.key, form_of(entry).text());
  });
  dist::require_equal(ranks(), "the variables of a Checkpoint (names, types, shapes)", forms);
}

void Checkpoint::require_all_given() {
  if (!restoration_) return;
  const std::vector<std::string> keys = restoration_->not_given();
  if (keys.empty()) return;
  throw Error(
      ExitCode::kUsage, "checkpoint",
      fmt::format("'{}' were created after restore({}) and have not been restored; call "
                  "look_for_new() right after creating such variables, before they are trained, or "
                  "stop_restoring() to keep their current values; nothing was saved",
                  fmt::join(keys, "', '"), restoration_->values().prefix()));
}

std::string Checkpoint::save(const std::string& prefix) {
  run_on_all(ranks(), [&] { require_new_prefix(prefix); });
  // A saver belongs to one prefix, so another prefix gets a new one.
  if (!saver_ || prefix != saver_prefix_) {
    saver_ = std::make_unique<Saver>(
        SaverOptions{.prefix = prefix, .keep_checkpoint_max = setting_.keep_checkpoint_max},
        ranks());
    saver_prefix_ = prefix;
  }
  StateList state;
  run_on_all(ranks(), [&] {
    require_all_given();
    state = objects_->state();
  });
  if (restoration_ && ranks().rank() == 0)
    if (const auto waiting = restoration_->unused(); !waiting.empty())
      log::warning("checkpoint", fmt::format("{} restored value(s) still wait for their variables, "
                                             "'{}' first; this checkpoint does not contain them",
                                             waiting.size(), waiting.front()));
  const SaveResult result = saver_->save_as_next(state, save_counter_);
  if (!result.ok)
    throw Error(result.code, "checkpoint",
                fmt::format("{} could not be saved: {}; earlier checkpoints are kept",
                            result.prefix, result.error))
        .everywhere();
  save_counter_ = result.number;
  return numbered(prefix, result.number);
}

RestoreStatus Checkpoint::restore(const std::optional<std::string>& save) {
  if (!dist::all_equal(ranks(), save ? 1 : 0))
    throw Error(ExitCode::kDisagree, "checkpoint",
                "restore() got a checkpoint on some ranks and none on others; "
                "latest_checkpoint(folder, ranks) returns the same on all")
        .everywhere();
  if (!save) {
    if (ranks().rank() == 0)
      log::warning("checkpoint", "no checkpoint to restore: all variables keep their values");
    return RestoreStatus(nullptr);
  }
  // Before the files are opened: ranks with different variables would find different matches.
  require_equal_forms();
  // The old restore ends even if the new one fails.
  stop_restoring();
  std::shared_ptr<Restoration> restoration;
  std::optional<int64_t> number;
  std::vector<NamedEntry> matches;
  try {
    run_on_all(ranks(), [&] {
      restoration = std::make_shared<Restoration>(*save, objects_);
      number = restoration->values().save_counter();
      matches = restoration->matches();
    });
    run_on_all(ranks(),
               [&] { restoration->start(matches); });  // only once every rank has found its matches
  } catch (...) {
    if (restoration) restoration->stop();
    throw;
  }
  restoration_ = restoration;
  save_counter_ = number.value_or(save_counter_);
  return RestoreStatus(restoration);
}

void Checkpoint::load_weights_now(const std::string& save) {
  require_equal_forms();
  std::optional<int64_t> number;
  std::shared_ptr<Restoration> restoration;
  std::vector<NamedEntry> matches;
  // strict_matches() writes nothing; only after all ranks agree take() writes.
  run_on_all(ranks(), [&] {
    restoration = std::make_shared<Restoration>(save, objects_);
    restoration->has_been_looked_at();
    number = restoration->values().save_counter();
    matches = restoration->strict_matches();
  });
  run_on_all(ranks(),
             [&] { restoration->take(matches); });  // only once every rank has found its matches
  stop_restoring();
  save_counter_ = number.value_or(save_counter_);
}

}  // namespace lockstep::checkpoint
