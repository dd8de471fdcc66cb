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

/// Alignment in bytes of tensors and slices in a shard, for writes that bypass the page cache.
inline constexpr int64_t kTensorAlignment = 4096;

/// One rank's data shard, assembled in memory exactly as in the file. The pieces and the memory
/// must outlive it; nobody else may use the memory meanwhile.
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

  /// Lays the parts out; copies nothing yet.
  StagedShard(const std::vector<StoredTensor>& pieces, const std::vector<ShardItem>& parts,
              int32_t shard, StagingBuffer* memory);

  /// Copies everything, slot by slot, with zeros in the gaps. Checksums are computed at the same
  /// time, while the bytes are in the cache. level() rises meanwhile, and is given up if this
  /// throws. Throws Error(kBug) if a pruned element of a piece with kept_bits is not +0.
  void fill();
  Watermark& level() { return watermark_; }

  const std::vector<Slot>& slots() const { return slots_; }
  /// Returns the size of the file. The memory continues with zeros up to the next multiple of
  /// kTensorAlignment.
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
