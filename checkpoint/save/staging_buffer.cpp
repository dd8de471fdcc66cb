#include "checkpoint/save/staging_buffer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <sys/mman.h>

#include "base/error.h"

// Whether a used chunk comes back before a new one is ready depends on disk and system. take()
// waits at most as long as a new chunk takes, so it needs at most twice the time of the better
// choice. After vain waits it waits ever less often.
namespace lockstep::checkpoint {
namespace {

constexpr int64_t kMostSkips = 64;

/// Writes to the pages, which makes the system find them now.
void touch_pages(char* begin, int64_t num_bytes) {
  constexpr int64_t kPage = 4096;
  for (int64_t at = 0; at < num_bytes; at += kPage) begin[at] = 0;
}

}  // namespace

void StagingBuffer::reserve(int64_t num_bytes) {
  const std::lock_guard lock(mutex_);
  const int64_t num_chunks = (num_bytes + kChunkBytes - 1) / kChunkBytes;
  free_.clear();
  if (num_chunks > num_chunks_) {
    memory_.reset();
    num_chunks_ = num_touched_ = 0;
    // The alignment is that of huge pages.
    memory_.reset(
        static_cast<char*>(std::aligned_alloc(size_t{1} << 21, num_chunks * kChunkBytes)));
    if (memory_ == nullptr)
      throw Error(
          ExitCode::kIo, "memory",
          fmt::format("no {} bytes to stage a checkpoint: {}", num_bytes, std::strerror(errno)));
    (void)::madvise(memory_.get(), static_cast<size_t>(num_chunks * kChunkBytes),
                    MADV_HUGEPAGE);  // best effort
    num_chunks_ = num_chunks;
  }
  image_bytes_ = num_bytes;
  for (int64_t i = num_touched_; i-- > 0;) free_.push_back(memory_.get() + i * kChunkBytes);
}

void StagingBuffer::touch() {
  const std::lock_guard lock(mutex_);
  while (num_touched_ < num_chunks_) free_.push_back(new_chunk());
}

char* StagingBuffer::new_chunk() {
  check(num_touched_ < num_chunks_, "an image takes more chunks than it has");
  char* const chunk = memory_.get() + num_touched_ * kChunkBytes;
  touch_pages(chunk, std::min(kChunkBytes, image_bytes_ - num_touched_ * kChunkBytes));
  ++num_touched_;
  return chunk;
}

char* StagingBuffer::take() {
  std::unique_lock lock(mutex_);
  const auto is_free = [this] { return !free_.empty(); };
  if (num_touched_ > 0 && !is_free()) {
    if (num_skips_ > 0) {
      --num_skips_;
    } else if (given_back_.wait_for(lock, longest_wait_, is_free)) {
      next_skips_ = 1;
    } else {
      num_skips_ = next_skips_;
      next_skips_ = std::min(2 * next_skips_, kMostSkips);
    }
  }
  if (is_free()) {
    char* const chunk = free_.back();
    free_.pop_back();
    return chunk;
  }
  lock.unlock();  // chunks can be given back meanwhile
  const auto begin = std::chrono::steady_clock::now();
  char* const chunk = new_chunk();
  longest_wait_ = std::chrono::steady_clock::now() - begin;
  return chunk;
}

void StagingBuffer::give_back(char* chunk) {
  {
    const std::lock_guard lock(mutex_);
    free_.push_back(chunk);
  }
  given_back_.notify_one();
}

}  // namespace lockstep::checkpoint
