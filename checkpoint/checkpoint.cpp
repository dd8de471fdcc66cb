#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/object_table.h"
#include "checkpoint/rank_faults.h"
#include "checkpoint/restoration.h"
#include "checkpoint/save_files.h"
#include "checkpoint/save_prefix.h"
#include "checkpoint/saver.h"
#include "dist/agree.h"
#include "dist/self_communicator.h"

namespace lockstep::checkpoint {
namespace {

void add_part(const std::vector<std::string>& keys, std::string_view what, std::string* text) {
  if (keys.empty()) return;
  *text += fmt::format("{}{} '{}'", text->empty() ? "" : "; ", what, fmt::join(keys, "', '"));
}

void throw_if(const std::string& text, const std::string& prefix) {
  if (!text.empty())
    throw Error(ExitCode::kBadData, "checkpoint", fmt::format("{}: {}", prefix, text));
}

int64_t newest_number(const std::string& prefix) {
  const std::filesystem::path path(prefix);
  const std::filesystem::path dir = path.has_parent_path() ? path.parent_path() : ".";
  const std::vector<SaveName> saves = find_saves(dir, path.filename().string());
  return saves.empty() ? 0 : saves.back().number;
}

}  // namespace

const RestoreStatus& RestoreStatus::assert_consumed() const {
  restoration_->match();
  restoration_->has_been_looked_at();
  std::string text;
  add_part(restoration_->unused(), "saved values without a variable:", &text);
  add_part(restoration_->missing(), "variables without a saved value:", &text);
  throw_if(text, restoration_->values().prefix());
  return *this;
}

const RestoreStatus& RestoreStatus::assert_existing_objects_matched() const {
  restoration_->match();
  restoration_->has_been_looked_at();
  std::string text;
  add_part(restoration_->missing_existing(), "variables without a saved value:", &text);
  throw_if(text, restoration_->values().prefix());
  return *this;
}

const RestoreStatus& RestoreStatus::expect_partial() const {
  restoration_->has_been_looked_at();
  return *this;
}

std::vector<std::string> RestoreStatus::pending() const { return restoration_->unused(); }
std::vector<std::string> RestoreStatus::missing() const { return restoration_->missing(); }

Checkpoint::Checkpoint(std::initializer_list<NamedObject> objects, CheckpointSetting setting)
    : setting_(setting),
      alone_(setting.ranks ? nullptr : std::make_unique<dist::SelfCommunicator>()),
      objects_(std::make_shared<ObjectTable>()) {
  for (const NamedObject& each : objects) objects_->add(each.key, each.object);
}

Checkpoint::~Checkpoint() = default;  // here Restoration and Saver are known

dist::Communicator& Checkpoint::ranks() { return setting_.ranks ? *setting_.ranks : *alone_; }

template <typename Body>
void Checkpoint::on_all(const Body& body) {
  if (const auto fault = shared_fault(ranks(), fault_of(body))) throw Error(*fault).everywhere();
}

void Checkpoint::add(std::string key, Tracked object) {
  on_all([&] {
    objects_->add(std::move(key), std::move(object));
    look_for_new();
  });
}

void Checkpoint::look_for_new() {
  if (restoration_) restoration_->match();
}

int64_t Checkpoint::next_number(const std::string& prefix) {
  int64_t newest = 0;
  std::optional<Error> fault;
  if (ranks().rank() == 0) fault = fault_of([&] { newest = newest_number(prefix); });
  if (const auto shared = shared_fault(ranks(), fault)) throw Error(*shared).everywhere();
  return std::max(dist::max_of(ranks(), newest), dist::max_of(ranks(), save_counter_)) + 1;
}

std::string Checkpoint::save(const std::string& prefix) {
  on_all([&] { require_new_prefix(prefix); });
  if (!saver_ || prefix != saver_prefix_) {
    saver_ = std::make_unique<Saver>(
        SaverOptions{.prefix = prefix, .keep_checkpoint_max = setting_.keep_checkpoint_max},
        ranks());
    saver_prefix_ = prefix;
  }
  StateList state;
  on_all([&] {
    look_for_new();
    state = objects_->state();
  });
  if (restoration_ && ranks().rank() == 0)
    if (const auto waiting = restoration_->unused(); !waiting.empty())
      log::warning("checkpoint",
                   fmt::format("{} restored value(s) still wait for their variables, '{}' first; "
                               "this save does not hold them",
                               waiting.size(), waiting.front()));
  const int64_t number = next_number(prefix);
  const SaveResult result = saver_->save(state, number);
  if (!result.ok)
    throw Error(ExitCode::kIo, "checkpoint",
                fmt::format("{} could not be saved: {}; the saves before it stand",
                            numbered(prefix, number), result.error))
        .everywhere();
  save_counter_ = number;
  return numbered(prefix, number);
}

void Checkpoint::take_over(std::shared_ptr<Restoration> restoration) {
  save_counter_ = restoration->values().save_counter().value_or(save_counter_);
  restoration_ = std::move(restoration);
}

void Checkpoint::let_go() {
  if (restoration_) restoration_->stop();  // a status may keep it alive
  restoration_.reset();
}

RestoreStatus Checkpoint::restore(const std::string& save) {
  std::shared_ptr<Restoration> restoration;
  on_all([&] {
    restoration = std::make_shared<Restoration>(save, objects_);
    let_go();
    restoration->match();
    take_over(restoration);
  });
  return RestoreStatus(restoration);
}

void Checkpoint::load_weights_now(const std::string& save) {
  on_all([&] {
    const auto restoration = std::make_shared<Restoration>(save, objects_);
    restoration->match_strictly();
    let_go();
    save_counter_ = restoration->values().save_counter().value_or(save_counter_);
  });
}

}  // namespace lockstep::checkpoint
