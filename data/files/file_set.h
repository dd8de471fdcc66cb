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

/// Files of a data set, in a fixed order. Each is opened when it is first read; of very many only
/// some stay open. Any thread may read.
class FileSet {
 public:
  explicit FileSet(std::vector<std::filesystem::path> paths);

  int64_t num_files() const { return static_cast<int64_t>(paths_.size()); }
  const std::filesystem::path& path(int64_t file) const {
    return paths_[static_cast<size_t>(file)];
  }
  const std::vector<std::filesystem::path>& paths() const { return paths_; }

  /// Opened, and open while the pointer is held.
  std::shared_ptr<const files::Reader> open(int64_t file) const;

 private:
  std::vector<std::filesystem::path> paths_;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const files::Reader>> open_;  // file f at f % kMaxOpen
};

/// Tells files of different content apart without reading all of a large set: SHA-256, in hex, of
/// each file's name and size, and of their bytes, put one behind the other, as a whole up to 64
/// MiB, else of 512 pieces of 64 KiB at equal distances, the first and the last among them. Names
/// are those below the folder that holds all files, so that a set may be moved. The tag of a file
/// in a store stands for its bytes.
std::string digest_of_files(const std::vector<std::filesystem::path>& paths);

}  // namespace lockstep::data
