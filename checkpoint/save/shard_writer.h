#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/format/bundle_index.h"
#include "checkpoint/save/save_plan.h"
#include "checkpoint/save/staging_buffer.h"

/// One rank's shard: assembled in memory, written to its place, reported for the index.
namespace lockstep::checkpoint {

/// Fill level of a memory area, from its start: one thread fills it, others follow.
class Watermark {
 public:
  /// Declares all bytes before `num_bytes` final.
  void raise(int64_t num_bytes) {
    level_ = num_bytes;
    level_.notify_all();
  }
  /// Declares that nothing more will come; waiting calls return false.
  void give_up() {
    if (level_ >= 0) level_ = ~level_;
    level_.notify_all();
  }
  /// Waits until all bytes before `num_bytes` are final; false if they never will be.
  bool wait_for(int64_t num_bytes) {
    int64_t level = level_;
    for (; level >= 0 && level < num_bytes; level = level_) level_.wait(level);
    // Bytes that became final before giving up may still be used.
    return (level < 0 ? ~level : level) >= num_bytes;
  }

 private:
  std::atomic<int64_t> level_ = 0;  ///< final bytes n; ~n once given up
};

/// Alignment in bytes of tensors and slices in a shard, for writes that bypass the page cache.
inline constexpr int64_t kTensorAlignment = 4096;

/// One rank's data shard, assembled in memory exactly as in the file. The pieces and the memory
/// must outlive it; no other code may use the memory meanwhile.
class StagedShard {
 public:
  /// Tensor, slice or text in the shard.
  struct Slot {
    const StoredTensor* piece = nullptr;
    ElementRange range;  ///< stored elements
    BundleSlice slice;   ///< place and box; fill() sets the crc
    std::string text;    ///< encoded text; empty for tensors

    bool is_whole() const { return slice.box.num_elements() == piece->num_elements(); }
  };

  /// Returns the memory in bytes that the image of these parts needs.
  static int64_t bytes_of(const std::vector<StoredTensor>& pieces,
                          const std::vector<ShardItem>& parts);

  /// Lays the parts out and reserves the memory; copies nothing yet.
  StagedShard(const std::vector<StoredTensor>& pieces, const std::vector<ShardItem>& parts,
              int32_t shard, StagingBuffer* memory);

  /// Copies everything, slot by slot, with zeros in the gaps. Checksums are computed at the same
  /// time, while the bytes are in the cache. level() rises meanwhile, and is given up if this
  /// throws. Throws Error(kBug) if a pruned element of a piece with kept_bits is not +0.
  void fill();
  Watermark& level() { return watermark_; }
  /// Adds a reader of the chunks, before fill(). Each of them releases every chunk.
  void add_reader() { ++num_readers_; }

  const std::vector<Slot>& slots() const { return slots_; }
  /// Returns the size of the file.
  int64_t num_bytes() const { return num_bytes_; }
  /// Returns the size of the image, which ends with zeros up to a multiple of kTensorAlignment.
  int64_t padded_bytes() const;
  /// Returns the chunk of the image at a multiple of StagingBuffer::kChunkBytes, once level() has
  /// passed it.
  std::span<const char> chunk_at(int64_t begin) const;
  /// Gives the memory of a chunk back once every reader has called it.
  void release_chunk(int64_t begin);

 private:
  StagedShard() = default;
  void lay_out(const std::vector<StoredTensor>& pieces, const std::vector<ShardItem>& parts,
               int32_t shard);
  void add_slots(const StoredTensor& piece, const ElementRange& range, int32_t shard);
  void add_slot(Slot slot, int64_t num_bytes);
  /// Returns the memory from this byte of the image to the end of its chunk.
  std::span<char> room_at(int64_t offset);
  /// Calls write(to, at, num_bytes) for parts of a range of the image, in order. Each is in one
  /// chunk. Releases the bytes to the writers of the file.
  template <typename Write>
  void write_parts(int64_t offset, int64_t num_bytes, const Write& write);
  void fill_slot(Slot* slot);

  std::vector<Slot> slots_;
  int64_t num_bytes_ = 0;
  StagingBuffer* memory_ = nullptr;
  std::vector<char*> chunks_;                   ///< null: not filled yet
  std::vector<std::atomic<int>> num_releases_;  ///< of each chunk
  int num_readers_ = 0;
  Watermark watermark_;
};

/// Place that a shard's bytes are written to, in strides: a file, or an object of a store.
class ShardSink {
 public:
  virtual ~ShardSink() = default;

  /// Returns the bytes of a stride, a multiple of StagingBuffer::kChunkBytes.
  virtual int64_t stride() const = 0;
  /// Returns how many threads should write at once.
  virtual int num_threads() const = 0;
  /// Writes the chunks of the stride that begins at `offset`. The last one ends with the padding of
  /// the image. Thread-safe.
  virtual void write(int64_t offset, const std::vector<std::span<const char>>& chunks) = 0;
  /// Returns once all bytes are durable. Called once, after all writes.
  virtual void finish() = 0;
};

/// Returns a sink for a new file. Errors as files::DirectWriter.
std::unique_ptr<ShardSink> file_sink(const std::filesystem::path& path, int64_t num_bytes);

/// Writer of a shard image, which starts while the image is still being filled.
class ShardWriter {
 public:
  /// Starts to write what staged->level() releases. Several may read one image. Call it before the
  /// image is filled; the image must outlive this.
  ShardWriter(std::unique_ptr<ShardSink> sink, StagedShard* staged);
  /// Gives up if finish() was not called; what was written stays as it is.
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  /// Returns once all bytes are durable. The caller writes too, so it also works if no thread could
  /// be started. The image must be filled, at least by another thread. Rethrows a writer's error.
  void finish();

 private:
  void write_strides();
  void write(int64_t begin, const std::vector<std::span<const char>>& chunks);
  void failed();

  StagedShard* staged_;
  std::unique_ptr<ShardSink> sink_;
  std::atomic<int64_t> next_ = 0;  ///< first byte that no thread has claimed
  std::atomic<bool> stopped_ = false, has_failed_ = false;
  std::mutex mutex_;
  std::exception_ptr fault_;
  std::vector<std::jthread> threads_;
};

/// Reads a file back and compares it with the checksums of what was written. Throws Error(kBadData)
/// with file, tensor and place.
void require_written(const std::filesystem::path& path,
                     const std::vector<StagedShard::Slot>& slots);

// Reports in which ranks list what they have written.

/// Returns this rank's filled slots as the bytes of a report.
std::string shard_report(const StagedShard& staged);

/// Builds the index of all ranks' shards from their reports, added one after the other.
class IndexBuilder {
 public:
  explicit IndexBuilder(int num_shards) { index_.num_shards = num_shards; }

  /// Adds a report. Throws Error(kBug) if it cannot be read, or if a tensor is in two of them.
  void add(const std::string& report);
  /// Returns the index. Throws Error(kBug) unless the reports cover every piece, each element once.
  BundleIndex finish(const std::vector<StoredTensor>& pieces);

 private:
  BundleIndex index_;
};

}  // namespace lockstep::checkpoint
