#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

namespace lockstep::files {

/// A new file of known size, written past the page cache (O_DIRECT) where the file system allows
/// that, so that a large write takes neither memory nor much processor time, and what was written
/// need not be written back later. Errors as base/files/files.h.
///
/// Order: write()..., by any threads, then finish() by one. An unfinished file stays as it is.
class DirectWriter {
 public:
  /// Offsets and memory given to write() are multiples of this.
  static constexpr int64_t kAlignment = 4096;

  /// Makes the file, empty, and takes the space on the disk at once: Error(kIo) if there is not
  /// enough. An existing file loses what it holds.
  DirectWriter(const std::filesystem::path& path, int64_t num_bytes);
  ~DirectWriter();
  DirectWriter(const DirectWriter&) = delete;
  DirectWriter& operator=(const DirectWriter&) = delete;

  /// The length is a multiple of kAlignment too; it may reach past the file's end, which finish()
  /// cuts off.
  void write(int64_t offset, std::span<const char> bytes);
  /// The file has its size and is on disk (fsync) when it returns; it is closed.
  void finish();

 private:
  void take_space();

  std::filesystem::path path_;
  int64_t num_bytes_;
  int descriptor_ = -1;
};

}  // namespace lockstep::files
