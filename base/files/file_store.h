#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

/// Files elsewhere: paths that begin with a scheme, such as s3://bucket/key. Code that supports a
/// scheme adds a store for it. files::Reader and data sets then read such paths like any other.
namespace lockstep::files {

/// Facts of a file from a listing.
struct FileFacts {
  std::string path;
  int64_t num_bytes = -1;  ///< -1: not determined
  std::string tag;         ///< of the content (ETag), different for other bytes; empty: unknown

  bool operator==(const FileFacts& other) const = default;
};

/// File of a store with random access. Thread-safe.
class RemoteFile {
 public:
  virtual ~RemoteFile() = default;

  /// Returns the size at the time of opening.
  virtual int64_t num_bytes() const = 0;
  /// Fills `bytes` from `offset` on; the range must be inside the file. Throws Error(kBadData) if
  /// the file was replaced since opening, Error(kIo) if the store does not deliver in time.
  virtual void read_at(int64_t offset, std::span<char> bytes) const = 0;
};

/// Limits of all stores of a process.
struct StoreLimits {
  int64_t cache_bytes = int64_t{256} << 20;  ///< file content kept in memory at most
  double timeout_s = 120;                    ///< for one request, including all retries
};

/// Store of one scheme. Thread-safe. Throws kInputMissing if a file or its folder (bucket) does not
/// exist or must not be read. Throws kConfig for incomplete credentials, kIo as above.
class FileStore {
 public:
  virtual ~FileStore() = default;

  virtual std::unique_ptr<RemoteFile> open(const std::string& path) = 0;
  /// Returns the facts of a file; nullopt if there is none.
  virtual std::optional<FileFacts> look_at(const std::string& path) = 0;
  /// Returns every file whose path begins with the text, sorted by path.
  virtual std::vector<FileFacts> list(const std::string& beginning) = 0;
  /// Takes over facts that another rank found, so that open() and look_at() need no request.
  virtual void learn(const FileFacts& facts) = 0;
};

/// Adds the store of a scheme ("s3"). Call it once per scheme, before files are read.
void add_store(const std::string& scheme, std::unique_ptr<FileStore> store);
/// Returns the store of a path; null for a path of this host. Throws Error(kConfig) for an unknown
/// scheme.
FileStore* store_of(const std::filesystem::path& path);
bool is_remote(const std::filesystem::path& path);

/// Sets the limits. Call it before files are read.
void set_store_limits(const StoreLimits& limits);
const StoreLimits& store_limits();

/// Returns the facts of one file. Throws Error(kInputMissing) if it does not exist.
FileFacts facts_of(const std::filesystem::path& path);

}  // namespace lockstep::files
