#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/files/files.h"

namespace lockstep::data {

/// Files of a data set in a fixed order. A file is opened when it is first read. Of very many files
/// only some stay open. Thread-safe.
class FileSet {
 public:
  explicit FileSet(std::vector<std::filesystem::path> paths);

  int64_t num_files() const { return static_cast<int64_t>(paths_.size()); }
  const std::filesystem::path& path(int64_t file) const {
    return paths_[static_cast<size_t>(file)];
  }
  const std::vector<std::filesystem::path>& paths() const { return paths_; }

  /// Opens a file; it stays open while the pointer is held.
  std::shared_ptr<const files::Reader> open(int64_t file) const;

 private:
  std::vector<std::filesystem::path> paths_;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const files::Reader>> open_;  // file f at f % kMaxOpenFiles
};

/// Returns a digest that differs for different content: SHA-256 in hex. It covers each file's name
/// and size, and the concatenated bytes of the files. Up to 64 MiB all bytes count. Of larger sets
/// it uses 512 pieces of 64 KiB at equal distances, including the first and the last. Names are
/// relative to the common folder of all files, so a set may be moved. For a file in a store its tag
/// replaces its bytes.
std::string digest_of_files(const std::vector<std::filesystem::path>& paths);

}  // namespace lockstep::data
