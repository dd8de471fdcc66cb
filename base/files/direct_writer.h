#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

namespace lockstep::files {

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
  ~DirectWriter();
  DirectWriter(const DirectWriter&) = delete;
  DirectWriter& operator=(const DirectWriter&) = delete;

  /// Writes bytes. The length is a multiple of kAlignment too. It may extend past the file's end;
  /// finish() cuts that off.
  void write(int64_t offset, std::span<const char> bytes);
  /// Sets the size, syncs (fsync) and closes the file. It is on disk on return.
  void finish();

 private:
  void take_space();

  std::filesystem::path path_;
  int64_t num_bytes_;
  int descriptor_ = -1;
};

}  // namespace lockstep::files
