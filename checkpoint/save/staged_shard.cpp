// Lays out and fills the image of a shard. Layout depends on shapes only; filling copies and
// checksums in one pass.
#include "checkpoint/save/staged_shard.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "base/digest.h"
#include "base/error.h"
#include "checkpoint/bundle/string_tensor.h"
#include "checkpoint/bundle/tensor_box.h"
#include "checkpoint/save/mask_index.h"

namespace lockstep::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr int64_t kCopyChunkBytes = int64_t{1} << 20;  // copied, then hashed from the cache

int64_t rounded_up(int64_t num_bytes) {
  return (num_bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

/// Returns the range's elements as a file stores them. The result shares the tensor's memory if
/// possible.
at::Tensor stored_elements(const at::Tensor& tensor, const ElementRange& range) {
  return tensor.detach()
      .reshape({-1})
      .narrow(0, range.begin_E, range.num_elements())
      .cpu()
      .resolve_conj()
      .resolve_neg()
      .contiguous();
}

/// Copies and returns the crc; calls copied(num_bytes) after each chunk.
template <typename Copied>
uint32_t copy_and_sum(const char* from, int64_t num_bytes, char* to, const Copied& copied) {
  uint32_t crc = 0;
  // A chunk is hashed right after its copy, while it is in the cache.
  for (int64_t at = 0; at < num_bytes; at += kCopyChunkBytes) {
    const auto size = static_cast<size_t>(std::min(kCopyChunkBytes, num_bytes - at));
    std::memcpy(to + at, from + at, size);
    crc = crc32c({to + at, size}, crc);
    copied(at + static_cast<int64_t>(size));
  }
  return crc;
}

/// Returns the elements whose kept ones are `stored`, limited to what this rank holds. Elements of
/// other ranks have undefined values, so they must not be checked for +0.
ElementRange held_elements(const StoredTensor& piece, const MaskIndex& kept,
                           const ElementRange& stored) {
  const ElementRange all = kept.elements(stored);
  if (!piece.held_dense) return all;
  for (const ElementRange& held : *piece.held_dense) {
    const ElementRange kept_here = kept.stored(held);
    if (kept_here.begin_E <= stored.begin_E && stored.begin_E < kept_here.end_E)
      return {std::max(all.begin_E, held.begin_E), std::min(all.end_E, held.end_E)};
  }
  return all;
}

void pack(const StoredTensor& piece, const ElementRange& stored, char* to) {
  const MaskIndex kept(piece.kept_bits, piece.tensor.numel());
  const at::Tensor elements = piece.tensor.detach().cpu().contiguous();  // itself if possible
  const auto* items = static_cast<const char*>(elements.const_data_ptr());
  if (!kept.pack(items, held_elements(piece, kept, stored), static_cast<int>(piece.element_bytes),
                 to))
    throw Error(
        ExitCode::kBug, "checkpoint",
        fmt::format("'{}': an element that its mask prunes is not 0, so a sparse save would "
                    "lose it; set checkpoint.sparse: false",
                    piece.name));
}

}  // namespace

StagedShard::StagedShard(const std::vector<StoredTensor>& pieces,
                         const std::vector<ShardItem>& parts, int32_t shard,
                         StagingBuffer* memory) {
  lay_out(pieces, parts, shard);
  bytes_ = memory->take(rounded_up(num_bytes_));
}

int64_t StagedShard::bytes_of(const std::vector<StoredTensor>& pieces,
                              const std::vector<ShardItem>& parts) {
  StagedShard staged;
  staged.lay_out(pieces, parts, 0);
  return rounded_up(staged.num_bytes_);
}

void StagedShard::lay_out(const std::vector<StoredTensor>& pieces,
                          const std::vector<ShardItem>& parts, int32_t shard) {
  for (const ShardItem& part : parts) add_slots(pieces[part.piece], part.range, shard);
}

void StagedShard::add_slots(const StoredTensor& piece, const ElementRange& range, int32_t shard) {
  if (piece.is_text()) {
    EncodedStrings encoded = encode_strings({piece.text});
    Slot slot{&piece, range, {{shard, 0, 0, encoded.masked_crc}, {}}, std::move(encoded.bytes)};
    const auto num_bytes = static_cast<int64_t>(slot.text.size());
    return add_slot(std::move(slot), num_bytes);
  }
  if (piece.num_elements() == 0)
    return add_slot({&piece, range, {{shard, 0, 0, masked_crc32c(0)}, whole_box(piece.shape)}, {}},
                    0);
  int64_t begin_E = range.begin_E;
  for (TensorBox& box : boxes_of(range, piece.shape)) {
    const ElementRange elements{begin_E, begin_E + box.num_elements()};
    begin_E = elements.end_E;
    add_slot({&piece, elements, {{shard, 0, 0, 0}, std::move(box)}, {}},
             elements.num_elements() * piece.element_bytes);
  }
}

void StagedShard::add_slot(Slot slot, int64_t num_bytes) {
  // An empty tensor needs no alignment: the file ends with the last byte of the last tensor.
  slot.slice.offset = num_bytes > 0 ? rounded_up(num_bytes_) : num_bytes_;
  slot.slice.num_bytes = num_bytes;
  num_bytes_ = slot.slice.end();
  slots_.push_back(std::move(slot));
}

void StagedShard::fill() {
  try {
    int64_t end = 0;
    const auto zeros_to = [&](int64_t offset) {
      if (offset > end)  // an empty shard has no memory
        std::memset(bytes_.data() + end, 0, static_cast<size_t>(offset - end));
    };
    for (Slot& slot : slots_) {
      zeros_to(slot.slice.offset);
      fill_slot(&slot);
      end = slot.slice.end();
      // Releases the bytes to the writers.
      watermark_.raise(end);
    }
    zeros_to(static_cast<int64_t>(bytes_.size()));
    watermark_.raise(static_cast<int64_t>(bytes_.size()));
  } catch (...) {
    watermark_.give_up();
    throw;
  }
}

void StagedShard::fill_slot(Slot* slot) {
  const StoredTensor& piece = *slot->piece;
  char* to = bytes_.data() + slot->slice.offset;
  if (piece.is_text()) {
    slot->text.copy(to, slot->text.size());  // a text's crc is set by encode_strings()
    return;
  }
  uint32_t crc = 0;
  if (piece.kept_bits.defined()) {
    pack(piece, slot->range, to);
    crc = crc32c({to, static_cast<size_t>(slot->slice.num_bytes)});
  } else if (slot->slice.num_bytes > 0) {
    const at::Tensor elements = stored_elements(piece.tensor, slot->range);
    crc = copy_and_sum(static_cast<const char*>(elements.const_data_ptr()), slot->slice.num_bytes,
                       to, [&](int64_t copied) { watermark_.raise(slot->slice.offset + copied); });
  }
  slot->slice.masked_crc = masked_crc32c(crc);
}

}  // namespace lockstep::checkpoint
