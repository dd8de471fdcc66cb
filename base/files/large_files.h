#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "base/files/files.h"

/// Access to large files: mapping, writes without the page cache.
namespace lockstep::files {

/// Memory mapping of a file: its bytes as pages of the system's page cache, so that reading copies
/// nothing. Some files, and kernels before Linux 5.14, cannot do that without the risk of a SIGBUS
/// at a disk fault. Then the bytes are read into memory. Both functions may run on several threads
/// at once, for disjoint ranges.
class Mapping {
 public:
  /// Takes address space for the entire file, but no memory. `file` must outlive the object. Throws
  /// Error(kIo) if there is not enough address space.
  explicit Mapping(const Reader& file);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  /// Returns bytes [offset, offset + num_bytes), which must be inside the file, after reading them
  /// from the disk. They are valid until release(). Throws Error(kIo) if they cannot be read. Later
  /// reads of the memory fail (SIGBUS) only in two cases. Somebody truncates the file, or the
  /// system drops pages and cannot read them again.
  const char* fetch(int64_t offset, int64_t num_bytes) const;
  /// Releases the pages that are entirely in the range; other fetched bytes stay.
  void release(int64_t offset, int64_t num_bytes) const;
  /// Releases everything that was fetched. No other call may run at the same time.
  void release() const { release(0, file_.num_bytes()); }

 private:
  const Reader& file_;
  char* bytes_ = nullptr;
  bool is_copy_ = false;  ///< anonymous memory that fetch() reads into
};

/// New file of known size, written without the page cache (O_DIRECT) if the file system allows
/// that. So a large write takes neither memory nor much processor time, and needs no later
/// writeback. Errors as base/files/files.h.
///
/// Order: write()..., by any threads, then finish() by one. An unfinished file stays as it is.
class DirectWriter {
 public:
  /// Alignment in bytes of offsets and memory for write().
  static constexpr int64_t kAlignment = 4096;

  /// Creates the file and reserves its space on the disk at once; throws Error(kIo) if there is not
  /// enough. An existing file is emptied.
  DirectWriter(const std::filesystem::path& path, int64_t num_bytes);

  /// Writes bytes. The length is a multiple of kAlignment too. It may extend past the file's end;
  /// finish() cuts that off.
  void write(int64_t offset, std::span<const char> bytes);
  /// Sets the size, syncs (fsync) and closes the file. It is on disk on return.
  void finish();

 private:
  void take_space();

  std::filesystem::path path_;
  int64_t num_bytes_;
  Descriptor descriptor_;
};

}  // namespace lockstep::files
