// Every step that may fail on one rank runs in on_all(). So all ranks throw the same error, and
// none waits in the next collective.
#include "checkpoint/objects/checkpoint.h"

#include <set>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/files/rank_faults.h"
#include "checkpoint/files/save_files.h"
#include "checkpoint/files/save_prefix.h"
#include "checkpoint/objects/object_table.h"
#include "checkpoint/objects/restoration.h"
#include "checkpoint/save/saver.h"
#include "dist/agree.h"
#include "dist/self_communicator.h"

namespace lockstep::checkpoint {
namespace {

/// Adds one kind of names to an error text.
void add_part(const std::vector<std::string>& keys, std::string_view what, std::string* text) {
  if (keys.empty()) return;
  *text += fmt::format("{}{} '{}'", text->empty() ? "" : "; ", what, fmt::join(keys, "', '"));
}

void throw_if(const std::string& text, const std::string& prefix) {
  if (!text.empty())
    throw Error(ExitCode::kBadData, "checkpoint", fmt::format("{}: {}", prefix, text));
}

[[noreturn]] void throw_nothing_restored() {
  throw Error(ExitCode::kBadData, "checkpoint",
              "no save was given to restore(), so nothing was restored");
}

constexpr std::string_view kNotGiven =
    "variables made after restore() without being announced, which have not been given their "
    "values (look_for_new() does it):";

}  // namespace

const RestoreStatus& RestoreStatus::assert_consumed() const {
  if (!restoration_) throw_nothing_restored();
  restoration_->has_been_looked_at();
  std::string text;
  add_part(restoration_->not_given(), kNotGiven, &text);
  add_part(restoration_->unused(), "saved values without a variable:", &text);
  add_part(restoration_->missing(), "variables without a saved value:", &text);
  throw_if(text, restoration_->values().prefix());
  return *this;
}

const RestoreStatus& RestoreStatus::assert_existing_objects_matched() const {
  if (!restoration_) throw_nothing_restored();
  restoration_->has_been_looked_at();
  std::string text;
  add_part(restoration_->not_given(), kNotGiven, &text);
  add_part(restoration_->missing_existing(), "variables without a saved value:", &text);
  throw_if(text, restoration_->values().prefix());
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

template <typename Body>
void Checkpoint::on_all(const Body& body) {
  if (const auto fault = shared_fault(ranks(), fault_of(body))) throw Error(*fault).everywhere();
}

// Only a restore in progress needs the keys that exist already.
void Checkpoint::add(std::string key, Tracked object) {
  on_all([&] {
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

void Checkpoint::let_go() {
  if (restoration_) restoration_->stop();  // a RestoreStatus may keep it alive
  restoration_.reset();
}

/// Throws unless all ranks have the same variables. Layers that take their shape from their input
/// may differ.
void Checkpoint::require_equal_forms() {
  std::string forms;
  on_all([&] {
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
      fmt::format("'{}' were made after restore({}) and have not been given the values saved for "
                  "them; call look_for_new() right after making such variables, before they are "
                  "trained, or stop_restoring() if they are to keep what they hold; nothing was "
                  "saved",
                  fmt::join(keys, "', '"), restoration_->values().prefix()));
}

std::string Checkpoint::save(const std::string& prefix) {
  on_all([&] { require_new_prefix(prefix); });
  // A saver belongs to one prefix, so another prefix gets a new one.
  if (!saver_ || prefix != saver_prefix_) {
    saver_ = std::make_unique<Saver>(
        SaverOptions{.prefix = prefix, .keep_checkpoint_max = setting_.keep_checkpoint_max},
        ranks());
    saver_prefix_ = prefix;
  }
  StateList state;
  on_all([&] {
    require_all_given();
    state = objects_->state();
  });
  if (restoration_ && ranks().rank() == 0)
    if (const auto waiting = restoration_->unused(); !waiting.empty())
      log::warning("checkpoint",
                   fmt::format("{} restored value(s) still wait for their variables, '{}' first; "
                               "this save does not hold them",
                               waiting.size(), waiting.front()));
  const SaveResult result = saver_->save_as_next(state, save_counter_);
  if (!result.ok)
    throw Error(result.code, "checkpoint",
                fmt::format("{} could not be saved: {}; the saves before it stand", result.prefix,
                            result.error))
        .everywhere();
  save_counter_ = result.number;
  return numbered(prefix, result.number);
}

RestoreStatus Checkpoint::restore(const std::optional<std::string>& save) {
  if (!dist::all_equal(ranks(), save ? 1 : 0))
    throw Error(ExitCode::kDisagree, "checkpoint",
                "restore() was given a save on some ranks and none on others; "
                "latest_checkpoint(folder, ranks) gives all the same answer")
        .everywhere();
  if (!save) {
    if (ranks().rank() == 0)
      log::warning("checkpoint", "there is no save to restore: all variables keep their values");
    return RestoreStatus(nullptr);
  }
  // Before the files are opened: ranks with different variables would find different matches.
  require_equal_forms();
  // The old restore ends even if the new one fails.
  let_go();
  std::shared_ptr<Restoration> restoration;
  std::optional<int64_t> number;
  std::vector<NamedEntry> matches;
  try {
    on_all([&] {
      restoration = std::make_shared<Restoration>(*save, objects_);
      number = restoration->values().save_counter();
      matches = restoration->matches();
    });
    on_all([&] { restoration->start(matches); });  // only once every rank has found its matches
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
  on_all([&] {
    restoration = std::make_shared<Restoration>(save, objects_);
    restoration->has_been_looked_at();
    number = restoration->values().save_counter();
    matches = restoration->strict_matches();
  });
  on_all([&] { restoration->take(matches); });  // only once every rank has found its matches
  let_go();
  save_counter_ = number.value_or(save_counter_);
}

}  // namespace lockstep::checkpoint
