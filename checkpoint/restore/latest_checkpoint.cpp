#include "checkpoint/restore/latest_checkpoint.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/files/rank_faults.h"
#include "checkpoint/files/save_files.h"
#include "checkpoint/reader/verify.h"
#include "dist/agree.h"

namespace lockstep::checkpoint {
namespace {

/// Returns the checkpoint that the state file names; nullopt if that is not complete.
std::optional<std::string> named_by_state_file(const std::filesystem::path& dir) {
  std::optional<StateFile> state;
  if (const auto fault = fault_of([&] { state = read_state_file(dir); }))
    log::warning("checkpoint", plain_text(*fault));
  if (!state || state->newest.empty()) return std::nullopt;
  const std::string prefix = (dir / state->newest).string();  // an absolute name stays unchanged
  const std::optional<std::string> defect = is_there(index_path(prefix))
                                                ? quick_check(prefix)
                                                : std::optional<std::string>("it is not there");
  if (!defect) return prefix;
  log::warning("checkpoint",
               fmt::format("{} names {}, which is not complete ({}); the folder's own numbers "
                           "decide",
                           (dir / kStateFile).string(), prefix, *defect));
  return std::nullopt;
}

/// True if the checkpoint was committed after the state file was written. Its program was killed
/// before it updated the state file.
bool is_newer_than_state_file(const SaveName& save, const std::filesystem::path& dir) {
  std::error_code of_index, of_state;
  const auto index = std::filesystem::last_write_time(index_path(save.prefix), of_index);
  const auto state = std::filesystem::last_write_time(dir / kStateFile, of_state);
  return !of_index && !of_state && index > state;
}

/// Returns the complete checkpoint with the highest number. If none is complete, returns the
/// highest of all.
std::optional<std::string> highest(const std::vector<SaveName>& saves) {
  for (auto save = saves.rbegin(); save != saves.rend(); ++save) {
    const std::optional<std::string> defect = quick_check(save->prefix);
    if (!defect) return save->prefix;
    log::warning("checkpoint", fmt::format("{} is passed over: {}", save->prefix, *defect));
  }
  // With only damaged ones, the caller's restore fails with the reason. Returning nothing would
  // mean a fresh start.
  return saves.empty() ? std::nullopt : std::optional(saves.back().prefix);
}

}  // namespace

std::optional<std::string> latest_checkpoint(const std::filesystem::path& dir) {
  std::error_code ignored;
  if (is_there(index_path(dir.string())) || std::filesystem::is_regular_file(dir, ignored))
    throw Error(ExitCode::kUsage, "checkpoint",
                fmt::format("'{}' is no folder: the newest save is asked of the folder, '{}'",
                            dir.string(), dir.parent_path().string()));
  const auto named = named_by_state_file(dir);
  if (!named) return highest(find_saves(dir));
  const auto parts = parse_file_name(index_path(std::filesystem::path(*named).filename()));
  if (!parts) return named;  // of another program, without a number
  // Only checkpoints newer than the state file in number and time may replace its choice.
  std::vector<SaveName> newer = find_saves(dir, parts->prefix);
  std::erase_if(newer, [&](const SaveName& save) {
    return save.number <= parts->number || !is_newer_than_state_file(save, dir) ||
           quick_check(save.prefix);
  });
  return newer.empty() ? named : newer.back().prefix;
}

std::optional<std::string> latest_checkpoint(const std::filesystem::path& dir,
                                             dist::Communicator& ranks) {
  std::string answer;
  std::optional<Error> fault;
  if (ranks.rank() == 0) fault = fault_of([&] { answer = latest_checkpoint(dir).value_or(""); });
  if (const auto shared = shared_fault(ranks, fault)) throw Error(*shared).everywhere();
  answer = dist::broadcast_text(ranks, answer);
  return answer.empty() ? std::nullopt : std::optional(answer);
}

}  // namespace lockstep::checkpoint
