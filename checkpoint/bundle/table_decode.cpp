// Reader of LevelDB's table format. Files may be damaged or hostile, so every size is checked
// before it is used.
#include <stdexcept>

#include <fmt/format.h>

#include "base/digest.h"
#include "checkpoint/bundle/index_table.h"
#include "checkpoint/bundle/wire.h"

namespace lockstep::checkpoint {
namespace {

constexpr size_t kFooterBytes = 48;
constexpr size_t kHandlesBytes = 40;
constexpr size_t kTrailerBytes = 5;  // compression type, crc
constexpr std::string_view kMagic("\x57\xfb\x80\x8b\x24\x75\x47\xdb", 8);
/// Limits of the rows' total size. Keys share prefixes, but LevelDB stores every 16th key entirely.
/// So a valid table never exceeds these.
constexpr size_t kExtraBytes = size_t{32} << 20;
constexpr size_t kMostUnfolded = 16;

/// Position of a block, without its trailer.
struct BlockPlace {
  uint64_t offset = 0;
  uint64_t num_bytes = 0;
};

[[noreturn]] void refuse(std::string_view what, uint64_t offset) {
  throw std::runtime_error(fmt::format("{} at byte {}", what, offset));
}

/// Removes a place from the front of `bytes` and returns it.
BlockPlace take_place(std::string_view* bytes, uint64_t offset) {
  const std::optional<uint64_t> start = take_varint(bytes);
  const std::optional<uint64_t> num_bytes = take_varint(bytes);
  if (!start || !num_bytes) refuse("cut place of a block", offset);
  return {*start, *num_bytes};
}

/// Returns a view of the block's content after checking that it is inside the file and its crc is
/// right.
std::string_view block_at(std::string_view file, BlockPlace place) {
  // Subtract instead of adding: offset + num_bytes of a hostile file may overflow.
  const uint64_t room = file.size() - kFooterBytes;
  if (place.offset > room || place.num_bytes > room - place.offset ||
      room - place.offset - place.num_bytes < kTrailerBytes)
    refuse("a block that does not lie inside the file", place.offset);
  const std::string_view checked = file.substr(place.offset, place.num_bytes + 1);
  const std::string_view crc = file.substr(place.offset + place.num_bytes + 1, 4);
  if (masked_crc32c(crc32c(checked)) != read_fixed32(crc))
    refuse("wrong crc of the block", place.offset);
  if (checked.back() != '\0') refuse("compressed block (TensorFlow writes none)", place.offset);
  return checked.substr(0, place.num_bytes);
}

/// Reads the entries of a block in order. Restart points are not needed for that.
class BlockEntries {
 public:
  BlockEntries(std::string_view block, uint64_t offset) : offset_(offset) {
    if (block.size() < 4) refuse("block too short", offset);
    const uint64_t num_restarts = read_fixed32(block.substr(block.size() - 4));
    if (num_restarts > (block.size() - 4) / 4)
      refuse("more restart points than the block holds", offset);
    rest_ = block.substr(0, block.size() - 4 - 4 * num_restarts);
  }

  /// Advances to the next entry; false at the end. Keys must ascend, which also limits their
  /// number.
  bool next() {
    if (rest_.empty()) return false;
    const std::optional<uint64_t> shared = take_varint(&rest_);
    const std::optional<uint64_t> added = take_varint(&rest_);
    const std::optional<uint64_t> value_bytes = take_varint(&rest_);
    if (!shared || !added || !value_bytes || *shared > key.size() || *added > rest_.size() ||
        *value_bytes > rest_.size() - *added)
      refuse("entry that does not fit its block", offset_);
    std::string next_key = key.substr(0, *shared);
    next_key += rest_.substr(0, *added);
    if (started_ && next_key <= key) refuse("keys out of order in the block", offset_);
    key = std::move(next_key);
    value = rest_.substr(*added, *value_bytes);
    rest_.remove_prefix(*added + *value_bytes);
    started_ = true;
    return true;
  }

  std::string key;
  std::string_view value;

 private:
  uint64_t offset_;
  std::string_view rest_;
  bool started_ = false;
};

/// Memory limit that refuses a small file whose shared prefixes unfold into very much memory.
class Budget {
 public:
  explicit Budget(size_t num_bytes) : left_(num_bytes) {}
  void take(size_t num_bytes, uint64_t offset) {
    if (num_bytes > left_) refuse("keys unfold to more memory than a sound index needs", offset);
    left_ -= num_bytes;
  }

 private:
  size_t left_;
};

/// Iterates over the rows of all blocks in order.
class RowWalk {
 public:
  RowWalk(std::string_view file, const UseRow& use)
      : file_(file), use_(use), budget_(kMostUnfolded * file.size() + kExtraBytes) {}

  void take_block(BlockPlace place) {
    BlockEntries entries(block_at(file_, place), place.offset);
    while (entries.next()) {
      budget_.take(entries.key.size() + entries.value.size(), place.offset);
      if (started_ && entries.key <= last_key_) refuse("keys out of order", place.offset);
      use_(entries.key, entries.value);
      last_key_ = entries.key;
      started_ = true;
    }
  }

  /// Counts a key of the index block against the memory limit.
  void charge_key(const std::string& key, uint64_t offset) { budget_.take(key.size(), offset); }

 private:
  std::string_view file_;
  const UseRow& use_;
  Budget budget_;
  std::string last_key_;
  bool started_ = false;
};

}  // namespace

void for_each_row(std::string_view bytes, const UseRow& use) {
  if (bytes.size() < kFooterBytes) refuse("too short for an index: it ends", bytes.size());
  const uint64_t footer_offset = bytes.size() - kFooterBytes;
  std::string_view footer = bytes.substr(footer_offset);
  if (footer.substr(kHandlesBytes) != kMagic) refuse("no table footer", footer_offset);
  footer = footer.substr(0, kHandlesBytes);
  block_at(bytes, take_place(&footer, footer_offset));  // metaindex: checked, not used
  const BlockPlace index_place = take_place(&footer, footer_offset);
  BlockEntries blocks(block_at(bytes, index_place), index_place.offset);
  RowWalk walk(bytes, use);
  uint64_t end = 0;
  while (blocks.next()) {
    std::string_view rest = blocks.value;
    const BlockPlace place = take_place(&rest, index_place.offset);
    // Each block may occur once. Otherwise a small file could take very long.
    if (place.offset < end) refuse("blocks out of order", index_place.offset);
    walk.take_block(place);
    walk.charge_key(blocks.key, index_place.offset);
    end = place.offset + place.num_bytes;
  }
}

TableRows decode_table(std::string_view bytes) {
  TableRows rows;
  for_each_row(bytes, [&](const std::string& key, std::string_view value) {
    rows.emplace_hint(rows.end(), key, value);
  });
  return rows;
}

}  // namespace lockstep::checkpoint
