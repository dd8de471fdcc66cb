#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Bytes of a bundle: numbers, string tensors, and the sorted table of the index.
namespace lockstep::checkpoint {

// Numbers as files store them: little-endian, and varints with 7 bits per byte.

inline void put_varint(std::string* out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

/// Removes a varint from the front of `bytes`; nullopt if it is cut or longer than 64 bits.
inline std::optional<uint64_t> take_varint(std::string_view* bytes) {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 64 && !bytes->empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes->front());
    bytes->remove_prefix(1);
    if (shift == 63 && byte > 1) return std::nullopt;
    value |= uint64_t{byte & 0x7fU} << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

inline std::string fixed32(uint32_t value) {
  std::string bytes(4, '\0');
  for (int i = 0; i < 4; ++i) bytes[static_cast<size_t>(i)] = static_cast<char>(value >> (8 * i));
  return bytes;
}

/// Reads a little-endian number. `bytes` must have at least 4 bytes.
inline uint32_t read_fixed32(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= uint32_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return value;
}

// String tensors in a shard (docs/design/checkpoint_format.md, Data shard).

struct EncodedStrings {
  std::string bytes;
  uint32_t masked_crc = 0;  ///< crc of the entry, which is not the plain crc of `bytes`
};

EncodedStrings encode_strings(const std::vector<std::string_view>& texts);

/// Returns the masked crc of an entry for comparison with the index, without allocating the
/// strings. Throws as decode_strings().
uint32_t crc_of_strings(std::string_view bytes, int64_t num_texts);

struct DecodedStrings {
  std::vector<std::string> texts;
  uint32_t masked_crc = 0;  ///< to compare with the entry's
};

/// Decodes an entry. Throws std::runtime_error with the reason if `bytes` are not `num_texts`
/// strings. No memory is allocated before that is known. num_texts must be >= 0.
DecodedStrings decode_strings(std::string_view bytes, int64_t num_texts);

// Sorted table of an index file: LevelDB's format, uncompressed (docs/design/checkpoint_format.md,
// Index). BundleIndex defines the meaning of keys and values.

/// Builds the table row by row, in ascending order of keys, with TensorFlow's options. Equal rows
/// give equal bytes.
class TableEncoder {
 public:
  /// `take` is called with the table's bytes, piece by piece.
  explicit TableEncoder(std::function<void(std::string_view)> take);
  ~TableEncoder();
  TableEncoder(const TableEncoder&) = delete;
  TableEncoder& operator=(const TableEncoder&) = delete;

  void add(std::string_view key, std::string_view value);
  /// Writes the rest of the table. Call it once, after the last row.
  void finish();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// True if a TableEncoder gives exactly these bytes for the rows that they contain. This check also
/// covers the footer and the places of blocks, which the block checksums do not. Throws as
/// for_each_row().
bool is_as_encoded(std::string_view bytes);

/// Calls use(key, value) for each row, in order. Throws std::runtime_error with reason and offset
/// for an invalid table. Refuses tables whose rows unfold to more than 32 MiB plus 16 times the
/// table's size.
///
/// LevelDB's own reader is not used for two reasons. It allocates memory for a block before it
/// knows that the file contains it. Its checksums do not cover the footer and the empty metaindex
/// block.
using UseRow = std::function<void(const std::string& key, std::string_view value)>;
void for_each_row(std::string_view bytes, const UseRow& use);

}  // namespace lockstep::checkpoint
