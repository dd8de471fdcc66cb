#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

namespace lockstep::checkpoint {

/// Memory of shard images, in chunks that are used again: in the same save once a chunk is on disk,
/// and in later saves. So an image takes only as much memory as the disk is behind. New memory also
/// costs time: the system clears its pages, and a virtual machine first gets them from its host, at
/// 0.5 to 1 GB/s. One image at a time.
class StagingBuffer {
 public:
  static constexpr int64_t kChunkBytes = int64_t{4} << 20;

  StagingBuffer() = default;
  StagingBuffer(const StagingBuffer&) = delete;
  StagingBuffer& operator=(const StagingBuffer&) = delete;

  /// Takes address space for an image and gives back all chunks of the image before. Freed memory
  /// that the allocator has kept for the calling thread is used again. Throws Error(kIo) if the
  /// system has no such memory.
  void reserve(int64_t num_bytes);
  bool is_reserved() const { return memory_ != nullptr; }
  /// Touches all pages, so that take() never waits.
  void touch();

  /// Returns a chunk with undefined content, aligned to 2 MiB. Waits for one that is in use if that
  /// is probably faster than new memory. At most as often as the image has chunks.
  char* take();
  /// Gives back a chunk. Any thread.
  void give_back(char* chunk);

  /// Returns the number of chunks that were ever in use.
  int64_t num_touched() const { return num_touched_; }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };

  char* new_chunk();

  std::unique_ptr<char, Free> memory_;
  int64_t num_chunks_ = 0;
  int64_t image_bytes_ = 0;
  std::mutex mutex_;
  std::condition_variable given_back_;
  std::vector<char*> free_;
  int64_t num_touched_ = 0;                        ///< chunks, from the start of the memory
  std::chrono::duration<double> longest_wait_{0};  ///< as long as the last new chunk took
  int64_t num_skips_ = 0, next_skips_ = 1;         ///< calls that do not wait, after a vain wait
};

}  // namespace lockstep::checkpoint
