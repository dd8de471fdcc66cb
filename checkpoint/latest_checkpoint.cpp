#include "checkpoint/latest_checkpoint.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/rank_faults.h"
#include "checkpoint/save_files.h"
#include "dist/agree.h"

namespace lockstep::checkpoint {
namespace {

bool is_there(const std::string& prefix) {
  std::error_code ignored;
  return std::filesystem::exists(index_path(prefix), ignored);
}

/// What the state file names; nothing if it names nothing that is there.
std::optional<std::string> named_by_state_file(const std::filesystem::path& dir) {
  std::optional<StateFile> state;
  if (const auto fault = fault_of([&] { state = read_state_file(dir); }))
    log::warning("checkpoint", plain_text(*fault));
  if (!state || state->newest.empty()) return std::nullopt;
  const std::string prefix = (dir / state->newest).string();  // an absolute name stays what it is
  if (is_there(prefix)) return prefix;
  log::warning("checkpoint",
               fmt::format("{} names {}, which is not there; the folder's own numbers decide",
                           (dir / kStateFile).string(), prefix));
  return std::nullopt;
}

}  // namespace

std::optional<std::string> latest_checkpoint(const std::filesystem::path& dir) {
  std::error_code ignored;
  if (is_there(dir.string()) || std::filesystem::is_regular_file(dir, ignored))
    throw Error(ExitCode::kUsage, "checkpoint",
                fmt::format("'{}' is no folder: the newest save is asked of the folder, '{}'",
                            dir.string(), dir.parent_path().string()));
  const auto named = named_by_state_file(dir);
  const auto parts = named ? parse_file_name(index_path(std::filesystem::path(*named).filename()))
                           : std::optional<FileName>();
  if (named && !parts) return named;  // of another program, without a number
  // A run that was killed right after a commit did not come to name it.
  const std::vector<SaveName> saves = find_saves(dir, parts ? parts->prefix : "");
  if (named && (saves.empty() || saves.back().number <= parts->number)) return named;
  return saves.empty() ? std::nullopt : std::optional(saves.back().prefix);
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
