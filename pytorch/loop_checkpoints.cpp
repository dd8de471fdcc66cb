#include "pytorch/loop_checkpoints.h"

#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "base/files/files.h"
#include "base/log.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/format/rank_faults.h"
#include "checkpoint/save/checkpoint_folder.h"

namespace lockstep::pytorch {
namespace {

constexpr const char* kPrefixName = "model.ckpt";

void append(StateList more, StateList* all) {
  for (StateEntry& entry : more) all->push_back(std::move(entry));
}

}  // namespace

LoopCheckpoints::~LoopCheckpoints() { loop_.set_before_changes({}); }

void LoopCheckpoints::begin(const std::string& folder, int64_t keep, StateList entries) {
  (void)wait();
  const std::string prefix = (std::filesystem::path(folder) / kPrefixName).string();
  if (comm_ == nullptr) comm_ = loop_.another_communicator();
  if (saver_ == nullptr || prefix != prefix_) {
    saver_ = std::make_unique<checkpoint::Saver>(
        checkpoint::SaverOptions{
            .prefix = prefix, .keep_checkpoint_max = keep, .compare_replicas = true},
        *comm_);
    prefix_ = prefix;
    loop_.set_before_changes([this] { saver_->wait_until_staged(); });
  }
  saver_->keep_from_next_save(keep);
  append(loop_.state(), &entries);
  saver_->begin(entries, loop_.step());
}

checkpoint::SaveResult LoopCheckpoints::wait() {
  if (saver_ == nullptr || !saver_->is_under_way()) return last_;
  last_ = saver_->wait();
  if (!last_.ok && loop_.rank() == 0)
    log::warning("checkpoint",
                 fmt::format("the save of step {} failed: {}", last_.number, last_.error));
  return last_;
}

std::optional<checkpoint::RestoreReport> LoopCheckpoints::restore(const std::string& from,
                                                                  StateList entries,
                                                                  bool accepts_changes) {
  (void)wait();
  dist::Communicator& control = loop_.control();
  // Only rank 0 looks: ranks may see a file system differently.
  const std::string prefix = checkpoint::text_of_rank_0(control, [&] {
    if (files::exists(checkpoint::index_path(from))) return from;
    if (files::is_folder(from)) checkpoint::finish_replacements(from);
    const std::string name = std::filesystem::path(from).filename().string();
    if (checkpoint::parse_save_name(name))
      throw Error(ExitCode::kInputMissing, "resume", from + ".index does not exist");
    return std::string();
  });
  append(loop_.state(), &entries);
  std::optional<checkpoint::RestoreReport> report =
      prefix.empty() ? checkpoint::restore_latest(from, kPrefixName, entries, control)
                     : checkpoint::restore_on_all(prefix, entries, control);
  if (report) loop_.restored(accepts_changes);
  return report;
}

}  // namespace lockstep::pytorch
