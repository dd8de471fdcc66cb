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
#include "base/files/store.h"

/// Access to all files, on this host and in stores. Every function throws Error. It is
/// kInputMissing if a file to read is missing, is not a regular file or must not be read. It is kIo
/// for read faults, sync faults and no space. It is kCannotCreate if a file or folder cannot be
/// created. Messages name the path.
namespace lockstep::files {

// Files of this host, and in part of stores (base/files/store.h). Writer, WholeFile, rename_file(),
// make_folders(), is_file() and require_writable() are for this host only.

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

/// Returns the facts of one file. Throws Error(kInputMissing) if it does not exist.
FileFacts facts_of(const std::filesystem::path& path);

/// Returns the entire file. Throws kIo, before it allocates memory, if the file is larger than
/// max_bytes.
std::string read(const std::filesystem::path& path, int64_t max_bytes = int64_t{1} << 40);

/// Returns a small file that programs replace as a whole; nullopt if it is missing. A store's file
/// is read past all caches.
std::optional<std::string> read_now(const std::filesystem::path& path, int64_t max_bytes);

/// Replaces a small file atomically: temporary file, sync, rename, folder sync. A reader sees the
/// old text or the new one. In a store it is one request.
void write_atomically(const std::filesystem::path& path, std::string_view text);

void rename_file(const std::filesystem::path& from, const std::filesystem::path& to);
/// Makes earlier renames and removals in this folder durable. Some file systems have no such
/// operation and return EINVAL; that is not an error. A store needs none.
void sync_folder(const std::filesystem::path& folder);
/// Creates the folder and its missing parents, durably.
void make_folders(const std::filesystem::path& folder);
/// Removes a file; no error if it does not exist.
void remove_file(const std::filesystem::path& path);
/// Returns the names of the files in a folder, sorted; empty if the folder is missing or a file.
std::vector<std::string> list(const std::filesystem::path& folder);
/// True if a file or folder exists; false also if that cannot be found out. In a store, a folder is
/// the beginning of a file's path.
bool exists(const std::filesystem::path& path);
bool is_folder(const std::filesystem::path& path);
/// Returns the time of a file's last write; nullopt if that cannot be found out. Stores know whole
/// seconds.
std::optional<std::filesystem::file_time_type> written_at(const std::filesystem::path& path);
bool is_file(const std::filesystem::path& path);
/// Throws kCannotCreate unless a file can be created in the folder, which is created if it is
/// missing.
void require_writable(const std::filesystem::path& folder);

}  // namespace lockstep::files
