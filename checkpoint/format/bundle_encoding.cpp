// Bytes of a bundle: string tensors, and the sorted table of the index.
#include "checkpoint/format/bundle_encoding.h"

#include <limits>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <leveldb/env.h>
#include <leveldb/options.h>
#include <leveldb/table_builder.h>

#include "base/digest.h"

namespace lockstep::checkpoint {

// String tensors: varint lengths, the crc of the lengths, then the texts. decode_strings() checks
// all sizes before it allocates.

namespace {

constexpr size_t kCrcBytes = 4;

/// Adds a length to the crc. TensorFlow hashes it as a fixed-width number, although the file has a
/// varint.
uint32_t add_length(uint64_t length, uint32_t crc) {
  std::string bytes = fixed32(static_cast<uint32_t>(length));
  if (length > std::numeric_limits<uint32_t>::max())
    bytes += fixed32(static_cast<uint32_t>(length >> 32));
  return crc32c(bytes, crc);
}

/// Checks the lengths in one pass without storing them: the rest must be exactly the crc and the
/// strings. Returns the crc of the lengths.
uint32_t check_lengths(std::string_view bytes, int64_t num_texts) {
  uint32_t crc = 0;
  uint64_t total = 0;
  for (int64_t i = 0; i < num_texts; ++i) {
    const std::optional<uint64_t> length = take_varint(&bytes);
    if (!length || *length > bytes.size())
      throw std::runtime_error(fmt::format("length of string {} is wrong", i));
    total += *length;
    if (total > bytes.size()) throw std::runtime_error("strings are longer than the entry");
    crc = add_length(*length, crc);
  }
  if (bytes.size() != total + kCrcBytes)
    throw std::runtime_error(fmt::format("strings and their crc take {} bytes, not {}",
                                         total + kCrcBytes, bytes.size()));
  if (read_fixed32(bytes) != masked_crc32c(crc))
    throw std::runtime_error("crc of the string lengths is wrong");
  return crc;
}

}  // namespace

EncodedStrings encode_strings(const std::vector<std::string_view>& texts) {
  EncodedStrings encoded;
  uint32_t crc = 0;
  for (const std::string_view text : texts) {
    put_varint(&encoded.bytes, text.size());
    crc = add_length(text.size(), crc);
  }
  const std::string lengths_crc = fixed32(masked_crc32c(crc));
  encoded.bytes += lengths_crc;
  crc = crc32c(lengths_crc, crc);
  for (const std::string_view text : texts) {
    encoded.bytes += text;
    crc = crc32c(text, crc);
  }
  encoded.masked_crc = masked_crc32c(crc);
  return encoded;
}

uint32_t crc_of_strings(std::string_view bytes, int64_t num_texts) {
  const uint32_t lengths_crc = check_lengths(bytes, num_texts);
  // What follows the varints is the crc of the lengths and then the strings, as the entry's crc
  // covers them.
  for (int64_t i = 0; i < num_texts; ++i) (void)take_varint(&bytes);
  return masked_crc32c(crc32c(bytes, lengths_crc));
}

DecodedStrings decode_strings(std::string_view bytes, int64_t num_texts) {
  const uint32_t lengths_crc = check_lengths(bytes, num_texts);
  std::vector<uint64_t> lengths(static_cast<size_t>(num_texts));
  for (uint64_t& length : lengths) length = take_varint(&bytes).value();
  DecodedStrings decoded;
  decoded.texts.reserve(lengths.size());
  decoded.masked_crc = masked_crc32c(crc32c(bytes, lengths_crc));
  bytes.remove_prefix(kCrcBytes);
  for (const uint64_t length : lengths) {
    decoded.texts.emplace_back(bytes.substr(0, length));
    bytes.remove_prefix(length);
  }
  return decoded;
}

// Writer of the index table, by LevelDB's own table builder with TensorFlow's options.

namespace {

/// File for LevelDB's table builder that passes all bytes on.
class PassingFile final : public leveldb::WritableFile {
 public:
  explicit PassingFile(std::function<void(std::string_view)> take) : take_(std::move(take)) {}
  leveldb::Status Append(const leveldb::Slice& data) override {
    take_({data.data(), data.size()});
    return leveldb::Status::OK();
  }
  leveldb::Status Close() override { return leveldb::Status::OK(); }
  leveldb::Status Flush() override { return leveldb::Status::OK(); }
  leveldb::Status Sync() override { return leveldb::Status::OK(); }

 private:
  const std::function<void(std::string_view)> take_;
};

/// Returns TensorFlow's own values, so that equal rows give TensorFlow's bytes.
leveldb::Options table_options() {
  leveldb::Options options;
  options.compression = leveldb::kNoCompression;
  options.block_size = 262144;
  options.block_restart_interval = 16;
  return options;
}

}  // namespace

struct TableEncoder::Parts {
  explicit Parts(std::function<void(std::string_view)> take) : file(std::move(take)) {}

  PassingFile file;
  leveldb::TableBuilder builder{table_options(), &file};
  bool is_finished = false;
};

TableEncoder::TableEncoder(std::function<void(std::string_view)> take)
    : parts_(std::make_unique<Parts>(std::move(take))) {}

TableEncoder::~TableEncoder() {
  if (!parts_->is_finished) parts_->builder.Abandon();  // its destructor requires it
}

void TableEncoder::add(std::string_view key, std::string_view value) {
  parts_->builder.Add({key.data(), key.size()}, {value.data(), value.size()});
}

void TableEncoder::finish() {
  parts_->is_finished = true;
  const leveldb::Status status = parts_->builder.Finish();
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

bool is_as_encoded(std::string_view bytes) {
  std::string_view rest = bytes;
  bool is_equal = true;
  TableEncoder encoder([&](std::string_view piece) {
    is_equal = is_equal && rest.starts_with(piece);
    if (is_equal) rest.remove_prefix(piece.size());
  });
  for_each_row(bytes,
               [&](const std::string& key, std::string_view value) { encoder.add(key, value); });
  encoder.finish();
  return is_equal && rest.empty();
}

// Reader of the index table, in LevelDB's format. Files may be damaged or hostile, so every size is
// checked before it is used.

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
  if (!start || !num_bytes) refuse("truncated block position", offset);
  return {*start, *num_bytes};
}

/// Returns a view of the block's content after checking that it is inside the file and its crc is
/// right.
std::string_view block_at(std::string_view file, BlockPlace place) {
  // Subtract instead of adding: offset + num_bytes of a hostile file may overflow.
  const uint64_t room = file.size() - kFooterBytes;
  if (place.offset > room || place.num_bytes > room - place.offset ||
      room - place.offset - place.num_bytes < kTrailerBytes)
    refuse("a block outside the file", place.offset);
  const std::string_view checked = file.substr(place.offset, place.num_bytes + 1);
  const std::string_view crc = file.substr(place.offset + place.num_bytes + 1, 4);
  if (masked_crc32c(crc32c(checked)) != read_fixed32(crc))
    refuse("wrong crc of the block", place.offset);
  if (checked.back() != '\0')
    refuse("compressed block (TensorFlow does not write these)", place.offset);
  return checked.substr(0, place.num_bytes);
}

/// Reads the entries of a block in order. Restart points are not needed for that.
class BlockEntries {
 public:
  BlockEntries(std::string_view block, uint64_t offset) : offset_(offset) {
    if (block.size() < 4) refuse("block too short", offset);
    const uint64_t num_restarts = read_fixed32(block.substr(block.size() - 4));
    if (num_restarts > (block.size() - 4) / 4)
      refuse("more restart points than the block can contain", offset);
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

/// Iterates over the rows of all blocks in order.
class RowWalk {
 public:
  RowWalk(std::string_view file, const UseRow& use)
      : file_(file), use_(use), left_bytes_(kMostUnfolded * file.size() + kExtraBytes) {}

  void take_block(BlockPlace place) {
    BlockEntries entries(block_at(file_, place), place.offset);
    while (entries.next()) {
      charge(entries.key.size() + entries.value.size(), place.offset);
      if (started_ && entries.key <= last_key_) refuse("keys out of order", place.offset);
      use_(entries.key, entries.value);
      last_key_ = entries.key;
      started_ = true;
    }
  }

  /// Counts bytes against the memory limit. It refuses a small file whose shared prefixes unfold
  /// into very much memory.
  void charge(size_t num_bytes, uint64_t offset) {
    if (num_bytes > left_bytes_) refuse("keys need more memory than a valid index", offset);
    left_bytes_ -= num_bytes;
  }

 private:
  std::string_view file_;
  const UseRow& use_;
  size_t left_bytes_;
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
    walk.charge(blocks.key.size(), index_place.offset);
    end = place.offset + place.num_bytes;
  }
}

}  // namespace lockstep::checkpoint
