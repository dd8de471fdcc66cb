// Each piece's mask starts at a byte, so that a piece can be packed on its own.
#include "dist/shard/shard_masks.h"

#include <algorithm>
#include <utility>

#include "base/bits/bit_mask.h"
#include "base/bits/kept_bits.h"

namespace lockstep::dist {

ShardMasks::ShardMasks(const BucketShards& pieces) : pieces_(pieces) {
  int64_t offset_bytes = 0;
  for (int piece = 0; piece < pieces_.num_pieces(); ++piece) {
    bit_offsets_bytes_.push_back(offset_bytes);
    offset_bytes += num_mask_bytes(pieces_.size(piece));
  }
  bit_offsets_bytes_.push_back(offset_bytes);
  keep_all();
}

void ShardMasks::keep_all() {
  bits_.clear();
  counts_.clear();
  for (int piece = 0; piece < pieces_.num_pieces(); ++piece) counts_.push_back(pieces_.size(piece));
  largest_ = pieces_.largest();
}

void ShardMasks::set(const uint8_t* bits, int64_t first_item) {
  keep_all();
  std::vector<uint8_t> kept(static_cast<size_t>(bit_offsets_bytes_.back()));
  std::vector<int64_t> counts;
  int64_t num_kept = 0;
  for (int piece = 0; piece < pieces_.num_pieces(); ++piece) {
    uint8_t* here = kept.data() + bit_offsets_bytes_[static_cast<size_t>(piece)];
    copy_bits(bits, first_item + pieces_.begin(piece), pieces_.size(piece), here, 0);
    counts.push_back(count_kept(here, pieces_.size(piece)));
    num_kept += counts.back();
  }
  // A mask that keeps everything is dropped.
  if (num_kept == pieces_.num_elements()) return;
  bits_ = std::move(kept);
  counts_ = std::move(counts);
  largest_ = *std::max_element(counts_.begin(), counts_.end());
}

}  // namespace lockstep::dist
