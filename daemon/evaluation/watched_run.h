#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::daemon {

/// Returns the text at a key of a small JSON file that another process may have written. Empty if
/// the file does not exist (it may vanish at any time) or has no text at this key.
std::string text_in_json(const std::filesystem::path& path, const std::string& key);

/// True if the run's summary says that it has ended for good. A run that was stopped or told to end
/// will be started again. A run that lost a peer or hung (69, 79) is restarted by its job.
bool has_ended(const std::filesystem::path& summary);

/// Folders that must not be replaced while they are watched.
class WatchedFolders {
 public:
  explicit WatchedFolders(std::vector<std::filesystem::path> folders);

  /// Throws Error(kInputMissing) if a folder that existed at an earlier call was removed, renamed
  /// or replaced.
  void require_same();

 private:
  using Identity = std::pair<uint64_t, uint64_t>;  ///< device, inode

  std::vector<std::filesystem::path> folders_;
  std::map<std::filesystem::path, Identity> seen_;
};

}  // namespace lockstep::daemon
