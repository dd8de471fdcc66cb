#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

/// Stores: paths that begin with a scheme, such as s3://bucket/key. Code that supports a scheme
/// adds a store for it. Then base/files/files.h reads such paths like any other.
namespace lockstep::files {

/// Facts of a file from a listing.
struct FileFacts {
  std::string path;
  int64_t num_bytes = -1;  ///< -1: not determined
  std::string tag;         ///< of the content (ETag), different for other bytes; empty: unknown
  int64_t written_s = 0;   ///< time of the last write, in seconds since 1970; 0: unknown

  bool operator==(const FileFacts& other) const = default;
};

/// File of a store with random access. Thread-safe.
class RemoteFile {
 public:
  /// Long reads are fetched in blocks of this size, which begin at its multiples.
  static constexpr int64_t kBlockBytes = int64_t{4} << 20;

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
/// exist or must not be read. Throws kConfig for incomplete credentials, kIo as files.h.
class FileStore {
 public:
  virtual ~FileStore() = default;

  virtual std::unique_ptr<RemoteFile> open(const std::string& path) = 0;
  /// Returns the facts of a file; nullopt if there is none. Facts that are known are not requested
  /// again.
  virtual std::optional<FileFacts> look_at(const std::string& path) = 0;
  /// Returns every file whose path begins with the text, sorted by path.
  virtual std::vector<FileFacts> list(const std::string& beginning) = 0;
  /// Takes over facts that another rank found, so that open() and look_at() need no request.
  virtual void learn(const FileFacts& facts) = 0;
};

/// Part of a file that a store has received.
struct SentPart {
  std::string tag;      ///< the store's name for its content
  uint32_t crc32c = 0;  ///< of its bytes
};

/// File that is being sent in parts. It appears, at once and whole, when it is completed.
struct Upload {
  std::string path;
  std::string id;
  int64_t begun_s = 0;  ///< seconds since 1970, by the store's clock; 0: unknown
};

/// Small file as it is now, with the version that a condition of put() names.
struct Versioned {
  std::string bytes, version;
};

/// Write that a store refused, because the file is not in the version that it should replace. Its
/// code is kIo.
class WriteConflict : public Error {
 public:
  using Error::Error;
};

/// Store that files can be written to. A file is replaced as a whole. Writes throw kIo if the store
/// does not take them in time, kInputMissing if this user must not write.
class WritableStore : public FileStore {
 public:
  /// Drops what is known of files whose path begins with the text, so that they are looked at
  /// again.
  virtual void forget(const std::string& beginning) = 0;
  /// Returns a small file past all caches; nullopt if there is none.
  virtual std::optional<Versioned> read_now(const std::string& path) = 0;

  /// Writes a file and returns its version. With `replaced`, only if the present file has that
  /// version; empty: only if there is none. Otherwise throws WriteConflict. A file with exactly
  /// these bytes counts as written, since the answer to an earlier try may have been lost.
  virtual std::string put(const std::string& path, std::string_view bytes,
                          const std::optional<std::string>& replaced = std::nullopt) = 0;
  /// Removes a file; no error if there is none.
  virtual void remove(const std::string& path) = 0;

  virtual Upload begin_upload(const std::string& path) = 0;
  /// Sends a part, which is the bytes of all texts. Numbers start at 1. All parts but the last have
  /// at least 5 MiB. The store compares the crc.
  virtual SentPart send_part(const Upload& upload, int64_t number,
                             std::span<const std::string_view> bytes) = 0;
  /// Makes the file appear. False if the store does not know the upload: it was completed or
  /// aborted before.
  virtual bool complete(const Upload& upload, std::span<const SentPart> parts) = 0;
  /// Drops the parts; no error if the store does not know the upload.
  virtual void abort(const Upload& upload) = 0;
  /// Returns the uploads whose paths begin with the text.
  virtual std::vector<Upload> uploads(const std::string& beginning) = 0;
};

/// Adds the store of a scheme ("s3"). Call it once per scheme, before files are read.
void add_store(const std::string& scheme, std::unique_ptr<FileStore> store);
/// Returns the store of a path; null for a path of this host. Throws Error(kConfig) for an unknown
/// scheme.
FileStore* store_of(const std::filesystem::path& path);
/// Returns the store of a path that is_remote(), for writing. Throws Error(kConfig) if it takes no
/// files.
WritableStore& writable_store_of(const std::filesystem::path& path);
bool is_remote(const std::filesystem::path& path);

/// Sets the limits. Call it before files are read.
void set_store_limits(const StoreLimits& limits);
const StoreLimits& store_limits();

}  // namespace lockstep::files
