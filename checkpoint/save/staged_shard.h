#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/tensors/staging_buffer.h"
#include "checkpoint/bundle/bundle_index.h"
#include "checkpoint/save/save_plan.h"
#include "checkpoint/save/watermark.h"

namespace lockstep::checkpoint {

/// Tensors and slices begin at multiples of this in a shard, so that they are written past the page
/// cache.
inline constexpr int64_t kTensorAlignment = 4096;

/// One rank's data shard as it will lie in the file, put together in kept memory. The pieces must
/// outlive it, and so must the memory, which nobody else uses meanwhile.
class StagedShard {
 public:
  /// A tensor, a slice or a text in the shard.
  struct Slot {
    const StoredTensor* piece = nullptr;
    ElementRange range;  ///< stored elements
    BundleSlice slice;   ///< place and box; the crc is there once it is filled
    std::string text;    ///< encoded, of texts

    bool is_whole() const { return slice.box.num_elements() == piece->num_elements(); }
  };

  /// Memory that the image of these parts takes.
  static int64_t bytes_of(const std::vector<StoredTensor>& pieces,
                          const std::vector<ShardItem>& parts);

  /// Lays the parts out; copies nothing yet.
  StagedShard(const std::vector<StoredTensor>& pieces, const std::vector<ShardItem>& parts,
              int32_t shard, StagingBuffer* memory);

  /// Copies everything, slot by slot, with zeros between, and takes the checksums on the way, while
  /// the bytes are in the cache. level() rises meanwhile, and is given up if this throws:
  /// Error(kBug) if a pruned element of a piece with kept_bits is not +0.
  void fill();
  Watermark& level() { return watermark_; }

  const std::vector<Slot>& slots() const { return slots_; }
  /// Of the file. The memory goes on with zeros up to the next multiple of kTensorAlignment.
  int64_t num_bytes() const { return num_bytes_; }
  std::span<const char> padded_bytes() const { return bytes_; }

 private:
  StagedShard() = default;
  void lay_out(const std::vector<StoredTensor>& pieces, const std::vector<ShardItem>& parts,
               int32_t shard);
  void add_slots(const StoredTensor& piece, const ElementRange& range, int32_t shard);
  void add_slot(Slot slot, int64_t num_bytes);
  void fill_slot(Slot* slot);

  std::vector<Slot> slots_;
  int64_t num_bytes_ = 0;
  std::span<char> bytes_;
  Watermark watermark_;
};

}  // namespace lockstep::checkpoint
