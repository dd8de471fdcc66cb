#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

/// Staging buffer: memory that is reused from one checkpoint to the next. So only the first copy
/// into it waits for page faults. Aligned to 2 MiB, in huge pages if the system grants them. One
/// caller at a time.
class StagingBuffer {
 public:
  StagingBuffer() = default;
  ~StagingBuffer();
  StagingBuffer(const StagingBuffer&) = delete;
  StagingBuffer& operator=(const StagingBuffer&) = delete;

  /// Returns at least `num_bytes` bytes with undefined content. Throws Error(kIo) if the system has
  /// no such memory.
  std::span<char> take(int64_t num_bytes);
  /// Allocates the memory and touches its pages now, so that the first use does not wait for page
  /// faults.
  void touch(int64_t num_bytes);

 private:
  void give_back();

  char* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
  char* begin_ = nullptr;
  int64_t num_bytes_ = 0;
};

}  // namespace lockstep
