#include "pytorch/loop_checkpoints.h"

#include <filesystem>
#include <utility>

#include <dlfcn.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/module.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/format/rank_faults.h"
#include "checkpoint/save/checkpoint_folder.h"
#include "checkpoint/save/store_commit.h"
#include "remote/stores_module.h"

namespace lockstep::pytorch {
namespace {

constexpr const char* kPrefixName = "model.ckpt";

/// Opens the module of stores. It is next to this library.
void add_stores(const dist::Communicator& ranks) {
  [[maybe_unused]] static const bool is_done = [&] {
    Dl_info self{};
    check(::dladdr(reinterpret_cast<void*>(&add_stores), &self) != 0, "this library has a name");
    const auto* const table = static_cast<const remote::StoresTable*>(open_module(
        std::filesystem::path(self.dli_fname).parent_path() / remote::kStoresFile,
        remote::kStoresSymbol, LOCKSTEP_BUILD_ID, "remote", "a module of stores", "libcurl"));
    const auto add = [](const char* scheme, files::FileStore* store) {
      files::add_store(scheme, std::unique_ptr<files::FileStore>(store));
    };
    table->make_stores(ranks.rank(), ranks.world_size(), add);
    return true;
  }();
}

/// Throws the same error on all ranks if one cannot use the store of this path. `is_written`: saves
/// go there too. Collective.
void require_place(const std::string& prefix, bool is_written, dist::Communicator& ranks) {
  if (!files::is_remote(prefix)) return;
  const auto fault = checkpoint::shared_fault(ranks, checkpoint::fault_of([&] {
                                                add_stores(ranks);
                                                if (is_written)
                                                  checkpoint::require_store(prefix, ranks.rank());
                                              }));
  if (fault) throw Error(*fault);
}

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
    require_place(prefix, /*is_written=*/true, loop_.control());
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
  if (on_saved_) on_saved_(last_);
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
  require_place(from, /*is_written=*/false, control);
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
