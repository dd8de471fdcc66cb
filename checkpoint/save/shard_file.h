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

/// Writer of a shard image to a file, which starts while the image is still being filled.
class ShardFile {
 public:
  /// Creates the file and starts to write what staged->level() releases. The image must outlive
  /// this. Errors as files::DirectWriter.
  ShardFile(const std::filesystem::path& path, StagedShard* staged);
  /// Gives up if finish() was not called; the file stays as it is.
  ~ShardFile();
  ShardFile(const ShardFile&) = delete;
  ShardFile& operator=(const ShardFile&) = delete;

  /// Returns once all bytes are on disk. The caller writes too, so it also works if no thread could
  /// be started. The image must be filled, at least by another thread. Rethrows a writer's error.
  void finish();

 private:
  void write_chunks();
  void join();

  StagedShard* staged_;
  files::DirectWriter file_;
  std::atomic<int64_t> next_ = 0;  ///< first byte that no thread has claimed
  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;
  std::exception_ptr fault_;
  std::vector<std::thread> threads_;
};

/// Reads a file back and compares it with the checksums of what was written. Throws Error(kBadData)
/// with file, tensor and place.
void require_written(const std::filesystem::path& path,
                     const std::vector<StagedShard::Slot>& slots);

}  // namespace lockstep::checkpoint
