#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/files/file_store.h"

/// Access to all files. Every function throws Error. It is kInputMissing if a file to read is
/// missing, is not a regular file or must not be read. It is kIo for read faults, sync faults and
/// no space. It is kCannotCreate if a file or folder cannot be created. Messages name the path.
namespace lockstep::files {

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

/// File being written. Its bytes are on disk only after sync() has returned.
class Writer {
 public:
  enum class Start {
    kEmpty,  ///< an existing file is emptied
    kAtEnd,  ///< bytes are appended to an existing file
  };

  /// Creates the file if it does not exist.
  explicit Writer(const std::filesystem::path& path, Start start = Start::kEmpty);
  ~Writer();  // closes; an unfinished file stays as it is
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

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
  int descriptor_ = -1;
  int64_t num_bytes_ = 0;
};

/// Regular file, or one of a store (base/files/file_store.h), with random access. Thread-safe.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  /// Fills `bytes` from `offset` on. Throws kIo if the file ends before.
  void read_at(int64_t offset, std::span<char> bytes) const;
  /// Returns the size at the time of opening.
  int64_t num_bytes() const { return num_bytes_; }
  const std::filesystem::path& path() const { return path_; }
  /// Returns the descriptor for base/files/file_mapping.h; -1 for a file of a store.
  int descriptor() const { return descriptor_; }

 private:
  void open();

  std::filesystem::path path_;
  std::unique_ptr<RemoteFile> remote_;  ///< null for a file of this host
  int descriptor_ = -1;
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
/// Throws kCannotCreate unless a file can be created in the folder, which is created if it is
/// missing.
void require_writable(const std::filesystem::path& folder);

}  // namespace lockstep::files
