#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/files.h"
#include "base/files/large_files.h"

/// Files of a data set, opened on demand and read at any position.
namespace lockstep::data {

/// File for reading at any position, thread-safe. A file of at most 512 MiB is mapped and loaded
/// into memory on opening. So reads cost nothing more. Of a larger file, or one in a store, each
/// range is read on request.
class ResidentFile {
 public:
  /// Throws Error(kInputMissing) for a missing file.
  explicit ResidentFile(const std::filesystem::path& path);

  /// Returns bytes [offset, offset + num_bytes), which must be inside the file. They are valid
  /// while this object and `storage` are unchanged.
  std::string_view bytes(int64_t offset, int64_t num_bytes, std::string* storage) const;

  /// Prefetches bytes of a mapped file into the processor's caches if they are few.
  void expect(int64_t offset, int64_t num_bytes) const;

  int64_t num_bytes() const { return reader_.num_bytes(); }
  const std::filesystem::path& path() const { return reader_.path(); }

 private:
  files::Reader reader_;
  std::unique_ptr<files::Mapping> mapping_;
  const char* begin_ = nullptr;  // null: too large to map
};

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
