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

/// The one door to files. Every function throws Error: kInputMissing where a file to be read is not
/// there, is no regular file or may not be read, kIo for read faults, no space and sync faults,
/// kCannotCreate where a file or folder cannot be made. Texts name the path.
namespace lockstep::files {

/// What Reader throws, with kInputMissing, where a file is there and this user may not read it.
class NoPermission : public Error {
 public:
  using Error::Error;
};

/// What reading throws, with kBadData, where a file is not the one any more that it was when it was
/// opened.
class FileChanged : public Error {
 public:
  using Error::Error;
};

/// A file being written. Nothing is promised to be on disk before sync() returned.
class Writer {
 public:
  enum class Start {
    kEmpty,  ///< an existing file loses what it holds
    kAtEnd,  ///< an existing file keeps it, appended bytes come after
  };

  /// Creates the file if it is not there.
  explicit Writer(const std::filesystem::path& path, Start start = Start::kEmpty);
  ~Writer();  // closes; an unfinished file stays as it is
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  /// Where it throws, num_bytes() tells how much was written before the fault.
  void append(std::string_view bytes);
  /// On disk when it returns (fsync).
  void sync();
  /// Closes; call once, after the last append.
  void close();
  /// Written by this writer.
  int64_t num_bytes() const { return num_bytes_; }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t num_bytes_ = 0;
};

/// A regular file, or one of a store (base/files/file_store.h), read at chosen places. Any thread
/// may read.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  /// Fills `bytes` from `offset` on. Throws kIo if the file ends before.
  void read_at(int64_t offset, std::span<char> bytes) const;
  /// Size when it was opened.
  int64_t num_bytes() const { return num_bytes_; }
  const std::filesystem::path& path() const { return path_; }
  /// For the calls of base/files/file_mapping.h; -1 for a file of a store.
  int descriptor() const { return descriptor_; }

 private:
  void open();

  std::filesystem::path path_;
  std::unique_ptr<RemoteFile> remote_;  ///< null for a file of this host
  int descriptor_ = -1;
  int64_t num_bytes_ = 0;
};

/// The whole file. Throws kIo if it is larger than max_bytes (memory is not taken before that
/// check).
std::string read(const std::filesystem::path& path, int64_t max_bytes = int64_t{1} << 40);

/// Replaces a small file so that a reader sees the old text or the new one: temporary file, sync,
/// rename, folder sync.
void write_atomically(const std::filesystem::path& path, std::string_view text);

void rename_file(const std::filesystem::path& from, const std::filesystem::path& to);
/// Makes earlier renames and removals in this folder durable. Some file systems have no such
/// operation and say that it is not valid: then there is nothing to be done.
void sync_folder(const std::filesystem::path& folder);
/// Makes the folder and those above it, so far as they are not there, durably.
void make_folders(const std::filesystem::path& folder);
/// No error if it is not there.
void remove_file(const std::filesystem::path& path);
/// Names of the files in a folder, sorted; empty if there is no such folder (or it is a file).
std::vector<std::string> list(const std::filesystem::path& folder);
/// Throws kCannotCreate unless a file can be made in the folder (which is made if it is not there).
void require_writable(const std::filesystem::path& folder);

}  // namespace lockstep::files
