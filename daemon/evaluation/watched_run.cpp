#include "daemon/evaluation/watched_run.h"

#include <sys/stat.h>

#include <cerrno>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"

// The run writes its files while they are watched. So a missing or incomplete file is normal here
// and never an error.
namespace lockstep::daemon {
namespace {

/// Reads a small JSON file; null if that is not possible.
nlohmann::json small_json(const std::filesystem::path& path) {
  constexpr int64_t kMaxBytes = int64_t{1} << 24;  // metrics of many classes are long
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return {};
  try {
    nlohmann::json json = nlohmann::json::parse(files::read(path, kMaxBytes), nullptr, false);
    return json.is_object() ? json : nlohmann::json();
  } catch (const Error&) {  // too large, or just removed: a run that begins removes its summary
    return {};
  }
}

std::string text_at(const nlohmann::json& json, const std::string& key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

/// True if the run ended with a code after which its job restarts it.
bool is_restarted(const nlohmann::json& summary) {
  const auto code = summary.find("exit_code");
  return code != summary.end() && (*code == static_cast<int>(ExitCode::kUnavailable) ||
                                   *code == static_cast<int>(ExitCode::kWatchdog));
}

}  // namespace

std::string text_in_json(const std::filesystem::path& path, const std::string& key) {
  return text_at(small_json(path), key);
}

bool has_ended(const std::filesystem::path& summary) {
  const nlohmann::json json = small_json(summary);
  const std::string reason = text_at(json, "exit_reason");
  if (reason.empty() || reason == "stopped" || reason == "ended") return false;
  return reason != "failed" || !is_restarted(json);
}

WatchedFolders::WatchedFolders(std::vector<std::filesystem::path> folders)
    : folders_(std::move(folders)) {}

void WatchedFolders::require_same() {
  for (const std::filesystem::path& folder : folders_) {
    struct stat facts {};
    const bool is_there = ::stat(folder.c_str(), &facts) == 0;
    if (!is_there && errno != ENOENT && errno != ENOTDIR) continue;  // a file server may come back
    const Identity identity{facts.st_dev, facts.st_ino};
    if (!is_there && !seen_.contains(folder)) continue;  // the run has not begun
    // The first identity of a folder is recorded; later ones must equal it.
    if (is_there && seen_.try_emplace(folder, identity).first->second == identity) continue;
    throw Error(ExitCode::kInputMissing, "eval",
                fmt::format("{} was removed or renamed while it was watched: start the watcher "
                            "again for the run that is to be evaluated",
                            folder.string()));
  }
}

}  // namespace lockstep::daemon
