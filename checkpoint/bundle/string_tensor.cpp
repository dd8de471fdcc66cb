// String tensors: varint lengths, the crc of the lengths, then the texts. decode_strings() checks
// all sizes before it allocates.
#include "checkpoint/bundle/string_tensor.h"

#include <limits>
#include <stdexcept>

#include <fmt/format.h>

#include "base/digest.h"
#include "checkpoint/bundle/wire.h"

namespace lockstep::checkpoint {
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

}  // namespace lockstep::checkpoint
