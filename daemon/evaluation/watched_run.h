#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::daemon {

/// The text at a key of a small JSON file that others may have written; empty where there is no
/// such file (it may go at any time), no such key, or something else.
std::string text_in_json(const std::filesystem::path& path, const std::string& key);

/// Whether the run has ended by its summary. One that was stopped or told to end is meant to be
/// started again, and one that lost a peer or met a hang (69, 79) is restarted by its job.
bool has_ended(const std::filesystem::path& summary);

/// Folders that must stay the same ones while they are watched.
class WatchedFolders {
 public:
  explicit WatchedFolders(std::vector<std::filesystem::path> folders);

  /// Throws Error(kInputMissing) where a folder that was there at an earlier call is there no more,
  /// or is another one: it was removed or renamed.
  void require_same();

 private:
  using Identity = std::pair<uint64_t, uint64_t>;  ///< device, inode

  std::vector<std::filesystem::path> folders_;
  std::map<std::filesystem::path, Identity> seen_;
};

}  // namespace lockstep::daemon
