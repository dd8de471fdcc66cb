#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

/// Files elsewhere: paths that begin with a scheme, such as s3://bucket/key. Who knows a scheme
/// adds a store for it; files::Reader and data sets then read such paths like any other.
namespace lockstep::files {

/// What a listing says of a file.
struct FileFacts {
  std::string path;
  int64_t num_bytes = -1;  ///< -1: not looked at
  std::string tag;         ///< of the content (ETag): another one for other bytes; empty: not known

  bool operator==(const FileFacts& other) const = default;
};

/// A file of a store, read at chosen places. Any thread may read.
class RemoteFile {
 public:
  virtual ~RemoteFile() = default;

  /// Size when it was opened.
  virtual int64_t num_bytes() const = 0;
  /// Fills `bytes` from `offset` on, which lie inside the file. Throws Error(kBadData) if the file
  /// is another one than when it was opened, Error(kIo) if the store does not give it in time.
  virtual void read_at(int64_t offset, std::span<char> bytes) const = 0;
};

/// What all stores of a process keep to.
struct StoreLimits {
  int64_t cache_bytes = int64_t{256} << 20;  ///< of file content that is kept in memory at most
  double timeout_s = 120;                    ///< for one request, with all that it is tried again
};

/// One scheme. Any thread may call. Errors: kInputMissing where a file or its folder (bucket) is
/// not there or may not be read, kConfig where what gives access is set by halves, kIo as above.
class FileStore {
 public:
  virtual ~FileStore() = default;

  virtual std::unique_ptr<RemoteFile> open(const std::string& path) = 0;
  /// Nothing if there is no such file.
  virtual std::optional<FileFacts> look_at(const std::string& path) = 0;
  /// Every file whose path begins with the text, by path.
  virtual std::vector<FileFacts> list(const std::string& beginning) = 0;
  /// What another rank found: open() and look_at() then ask nobody.
  virtual void learn(const FileFacts& facts) = 0;
};

/// Once for each scheme ("s3"), before files are read.
void add_store(const std::string& scheme, std::unique_ptr<FileStore> store);
/// Null for a path of this host. Throws Error(kConfig) for a scheme that nobody added.
FileStore* store_of(const std::filesystem::path& path);
bool is_remote(const std::filesystem::path& path);

/// Before files are read.
void set_store_limits(const StoreLimits& limits);
const StoreLimits& store_limits();

/// Looks at one file. Throws Error(kInputMissing) if it is not there.
FileFacts facts_of(const std::filesystem::path& path);

}  // namespace lockstep::files
