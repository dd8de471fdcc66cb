// Matching and writing are separate steps. So with several ranks nothing is written before every
// rank has found its matches.
#include "checkpoint/objects/restoration.h"

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/files/save_files.h"
#include "checkpoint/files/state_names.h"

namespace lockstep::checkpoint {
namespace {

std::string mismatch(const std::string& key, const ValueForm& saved, const ValueForm& live) {
  return fmt::format("'{}' is saved as {}, the variable is {}", key, saved.text(), live.text());
}

[[noreturn]] void refuse(const SavedValues& values, const std::string& what) {
  throw Error(ExitCode::kBadData, "checkpoint",
              fmt::format("{}: {}", index_path(values.prefix()), what));
}

}  // namespace

Restoration::Restoration(const std::string& prefix, std::shared_ptr<ObjectTable> objects)
    : values_(prefix), objects_(std::move(objects)) {}

Restoration::~Restoration() {
  discard_made();
  if (looked_at_) return;
  const std::vector<std::string> left = unused();
  if (left.empty()) return;
  log::warning("checkpoint",
               fmt::format("{}: {} of its values were never used, the first is '{}'; the status of "
                           "restore() tells which, expect_partial() says that this is meant",
                           values_.prefix(), left.size(), left.front()));
}

void Restoration::make_what_objects_can() {
  has_made_ = true;
  objects_->make_saved([this](const std::string& key) { return values_.find(key).has_value(); },
                       &met_);
}

void Restoration::discard_made() {
  if (std::exchange(has_made_, false)) objects_->discard_made();
}

std::vector<NamedEntry> Restoration::matches(const std::set<std::string>& except) {
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

std::vector<NamedEntry> Restoration::find_matches(const std::set<std::string>& except) {
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

void Restoration::take(const std::vector<NamedEntry>& matches) {
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

void Restoration::stop() {
  discard_made();
  stopped_ = looked_at_ = true;
  watches_.clear();
}

void Restoration::match(const std::set<std::string>& except) {
  if (!stopped_) start(matches(except));
}

void Restoration::start(const std::vector<NamedEntry>& matches) {
  take(matches);
  watch_late_parts();
}

// Stricter than match(): nothing may be missing, left over or still to come.
std::vector<NamedEntry> Restoration::strict_matches() {
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
    refuse(values_, fmt::format("'{}' do not exist yet: call the model once before "
                                "load_weights_now(), or use restore(), which waits for them",
                                fmt::join(to_come, "', '")));
  if (const auto lacking = missing(); !lacking.empty())
    refuse(values_, fmt::format("holds no '{}'; nothing was restored", fmt::join(lacking, "', '")));
  if (!over.empty())
    refuse(values_, fmt::format("holds '{}', for which there is no variable; nothing was restored",
                                fmt::join(over, "', '")));
  return found;
}

void Restoration::watch_late_parts() {
  for (const ObjectTable::Late& late : objects_->late_parts())
    if (!watches_.contains(late.part))
      watches_[late.part] = late.part->watch(
          [this, prefix = late.prefix](const std::string& name, const at::Tensor& tensor) {
            created(prefix + name, tensor);
          });
}

// Runs inside the creation of a variable; its exception reaches the creator.
void Restoration::created(const std::string& key, const at::Tensor& tensor) {
  const auto name = values_.find(key);  // perhaps taken before, by a variable whose creation failed
  if (!name) return;
  const StateEntry entry{.key = key, .tensor = tensor.detach()};
  if (values_.form(*name) != form_of(entry))
    refuse(values_, mismatch(key, values_.form(*name), form_of(entry)) +
                        "; it was created just now, with its own initial value");
  take({{*name, entry}});
}

std::vector<std::string> Restoration::unused() const {
  std::vector<std::string> keys;
  for (const std::string& name : values_.variables())
    if (!taken_.contains(name)) keys.push_back(shown_name(name));
  return keys;
}

std::vector<std::string> Restoration::not_given() const {
  std::vector<std::string> keys;
  if (stopped_) return keys;
  for (const StateEntry& entry : objects_->state())
    if (!given_.contains(entry.key) && values_.find(entry.key)) keys.push_back(entry.key);
  return keys;
}

std::vector<std::string> Restoration::missing_existing() const {
  std::vector<std::string> keys;
  for (const StateEntry& entry : objects_->state())
    if (!values_.find(entry.key)) keys.push_back(entry.key);
  return keys;
}

std::vector<std::string> Restoration::missing() const {
  std::vector<std::string> keys = missing_existing();
  for (const std::string& key : objects_->keys_to_come())
    if (!values_.find(key)) keys.push_back(key);
  return keys;
}

}  // namespace lockstep::checkpoint
