#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

/// Staging buffer: memory that is kept from one checkpoint to the next, so that only the first copy
/// into it waits for the system to find pages. Aligned to 2 MiB, in huge pages where the system
/// grants them. One caller at a time.
class StagingBuffer {
 public:
  StagingBuffer() = default;
  ~StagingBuffer();
  StagingBuffer(const StagingBuffer&) = delete;
  StagingBuffer& operator=(const StagingBuffer&) = delete;

  /// At least that many bytes; what they hold is not defined. Throws Error(kIo) if the system has
  /// no such memory.
  std::span<char> take(int64_t num_bytes);
  /// Takes it and makes the system find its pages now: then the first use does not wait for them.
  void touch(int64_t num_bytes);

 private:
  void give_back();

  char* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
  char* begin_ = nullptr;
  int64_t num_bytes_ = 0;
};

}  // namespace lockstep
