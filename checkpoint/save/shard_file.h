#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <mutex>
#include <thread>
#include <vector>

#include "base/files/direct_writer.h"
#include "checkpoint/save/staged_shard.h"

namespace lockstep::checkpoint {

/// Writes an image into a file while it is filled.
class ShardFile {
 public:
  /// Makes the file and begins to write what image->level() gives free. The image must outlive it.
  /// Errors as files::DirectWriter.
  ShardFile(const std::filesystem::path& path, StagedShard* staged);
  /// Without finish(): gives up; the file stays as it is.
  ~ShardFile();
  ShardFile(const ShardFile&) = delete;
  ShardFile& operator=(const ShardFile&) = delete;

  /// Returns once all of it is on disk; the caller writes too, so that it is also where no thread
  /// could be started. The image must be filled, or be filled by another thread. Throws what the
  /// writing threw.
  void finish();

 private:
  void write_chunks();
  void join();

  StagedShard* staged_;
  files::DirectWriter file_;
  std::atomic<int64_t> next_ = 0;  ///< first byte that no thread has taken
  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;
  std::exception_ptr fault_;
  std::vector<std::thread> threads_;
};

/// Reads a file back and compares it with the checksums of what was written. Throws Error(kBadData)
/// that names file, tensor and place.
void require_written(const std::filesystem::path& path,
                     const std::vector<StagedShard::Slot>& slots);

}  // namespace lockstep::checkpoint
