#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

#include "base/error.h"

/// Access to all files, on this host and in stores. Every function throws Error. It is
/// kInputMissing if a file to read is missing, is not a regular file or must not be read. It is kIo
/// for read faults, sync faults and no space. It is kCannotCreate if a file or folder cannot be
/// created. Messages name the path.
namespace lockstep::files {

// Stores: paths that begin with a scheme, such as s3://bucket/key. Code that supports a scheme adds
// a store for it. Reader and data sets then read such paths like any other.

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

// Files on this host; Reader also reads from stores.

/// Owner of a file descriptor, which it closes; -1: none.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }

  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

/// Error of Reader, with kInputMissing, for a file that this user must not read.
class NoPermission : public Error {
 public:
  using Error::Error;
};

/// Error of reading, with kBadData, for a file that was replaced since it was opened.
class FileChanged : public Error {
 public:
  using Error::Error;
};

/// File being written. Its bytes are on disk only after sync() has returned. An unfinished file is
/// closed and stays as it is.
class Writer {
 public:
  enum class Start {
    kEmpty,  ///< an existing file is emptied
    kAtEnd,  ///< bytes are appended to an existing file
  };

  /// Creates the file if it does not exist.
  explicit Writer(const std::filesystem::path& path, Start start = Start::kEmpty);

  /// Appends bytes. If it throws, num_bytes() tells how many were written before the fault.
  void append(std::string_view bytes);
  /// Syncs (fsync): the bytes are on disk on return.
  void sync();
  /// Closes the file. Call it once, after the last append.
  void close();
  /// Returns the bytes written by this writer.
  int64_t num_bytes() const { return num_bytes_; }

 private:
  std::filesystem::path path_;
  Descriptor descriptor_;
  int64_t num_bytes_ = 0;
};

/// File that appears under its name when it is complete. It is written next to it, as the name with
/// a suffix, and then renamed. An unpublished file is removed, which frees space on a full disk. If
/// the process is killed, it remains.
class WholeFile {
 public:
  explicit WholeFile(std::filesystem::path path, std::string_view suffix = ".tmp");
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  void append(std::string_view bytes) { writer_->append(bytes); }
  /// Publishes the file. Call it once, at the end. `durably` also survives a power failure, which
  /// takes a disk sync.
  void publish(bool durably);

 private:
  std::filesystem::path path_, part_;
  std::optional<Writer> writer_;  // reset when the file is published
};

/// Regular file, or one of a store (FileStore), with random access. Thread-safe.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path);

  /// Fills `bytes` from `offset` on. Throws kIo if the file ends before.
  void read_at(int64_t offset, std::span<char> bytes) const;
  /// Returns the size at the time of opening.
  int64_t num_bytes() const { return num_bytes_; }
  const std::filesystem::path& path() const { return path_; }
  /// Returns the descriptor for base/files/large_files.h; -1 for a file of a store.
  int descriptor() const { return descriptor_.get(); }

 private:
  void open();

  std::filesystem::path path_;
  std::unique_ptr<RemoteFile> remote_;  ///< null for a file of this host
  Descriptor descriptor_;
  int64_t num_bytes_ = 0;
};

/// Returns the entire file. Throws kIo, before it allocates memory, if the file is larger than
/// max_bytes.
std::string read(const std::filesystem::path& path, int64_t max_bytes = int64_t{1} << 40);

/// Replaces a small file atomically: temporary file, sync, rename, folder sync. A reader sees the
/// old text or the new one.
void write_atomically(const std::filesystem::path& path, std::string_view text);

void rename_file(const std::filesystem::path& from, const std::filesystem::path& to);
/// Makes earlier renames and removals in this folder durable. Some file systems have no such
/// operation and return EINVAL; that is not an error.
void sync_folder(const std::filesystem::path& folder);
/// Creates the folder and its missing parents, durably.
void make_folders(const std::filesystem::path& folder);
/// Removes a file; no error if it does not exist.
void remove_file(const std::filesystem::path& path);
/// Returns the names of the files in a folder, sorted; empty if the folder is missing or a file.
std::vector<std::string> list(const std::filesystem::path& folder);
/// True if a file or folder exists on this host; false also if that cannot be found out.
bool exists(const std::filesystem::path& path);
bool is_folder(const std::filesystem::path& path);
bool is_file(const std::filesystem::path& path);
/// Throws kCannotCreate unless a file can be created in the folder, which is created if it is
/// missing.
void require_writable(const std::filesystem::path& folder);

}  // namespace lockstep::files
