#include "checkpoint/save/interrupted.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/files/rank_faults.h"
#include "checkpoint/files/save_files.h"
#include "checkpoint/files/save_lock.h"
#include "checkpoint/save/retention.h"

namespace lockstep::checkpoint {
namespace {

/// Returns the file name of a prefix.
std::string file_name(const std::string& prefix) {
  return std::filesystem::path(prefix).filename().string();
}

/// Returns the state file with `restored` at its place among the existing checkpoints that it
/// names.
StateFile with_save(const StateFile& before, const std::string& prefix, int64_t restored) {
  std::set<int64_t> numbers{restored};
  for (const SaveName& save : named_by(before, prefix))
    if (std::filesystem::exists(index_path(save.prefix))) numbers.insert(save.number);
  StateFile after{.newest = {}, .all = others_in(before, prefix)};
  for (const int64_t number : numbers) after.all.push_back(file_name(numbered(prefix, number)));
  // The highest number becomes the newest, as the killed program would have written.
  after.newest = after.all.back();
  return after;
}

}  // namespace

void tidy_interrupted(const std::string& prefix, int64_t restored) {
  const std::filesystem::path dir = std::filesystem::path(prefix).parent_path();
  const auto fault = fault_of([&] {
    if (!std::filesystem::exists(prefix + std::string(kJournalSuffix))) return;
    // No patience: another program that is saving does this work itself.
    const SaveLock lock(prefix, /*patience_s=*/0);
    if (!lock.is_held() || lock.left_over().empty()) return;
    remove_left_over(prefix, lock.left_over());
    change_state_file(dir,
                      [&](const StateFile& before) { return with_save(before, prefix, restored); });
  });
  if (fault)
    log::warning("checkpoint", fmt::format("what an interrupted save left stays until the next: {}",
                                           plain_text(*fault)));
}

}  // namespace lockstep::checkpoint
