// TensorFlow's "ordered code": encoded keys sort by bytes as their numbers and texts do.
#include "checkpoint/bundle/slice_key.h"

#include <array>
#include <bit>
#include <cstddef>

namespace lockstep::checkpoint {
namespace {

/// Writes the number of bytes that follow, then the value's bytes, most significant first.
void put_unsigned(std::string* out, uint64_t value) {
  const int num_bytes = (std::bit_width(value) + 7) / 8;
  out->push_back(static_cast<char>(num_bytes));
  for (int i = num_bytes - 1; i >= 0; --i) out->push_back(static_cast<char>(value >> (8 * i)));
}

/// Writes a text. Bytes 00 and ff get a marker byte, and 00 01 ends the text.
void put_text(std::string* out, std::string_view text) {
  for (const char byte : text) {
    out->push_back(byte);
    if (byte == '\0') out->push_back('\xff');
    if (byte == '\xff') out->push_back('\0');
  }
  out->append("\0\1", 2);
}

/// Writes a signed number: two's complement, most significant byte first. The number of leading
/// bits that are the opposite of the sign gives the length in bytes. So 7 of 8 bits of each byte
/// carry the value.
void put_signed(std::string* out, int64_t value) {
  const auto magnitude = static_cast<uint64_t>(value < 0 ? ~value : value);
  const int num_bytes = std::bit_width(magnitude) / 7 + 1;
  constexpr int kMaxBytes = 10;
  std::array<unsigned char, kMaxBytes> bytes{};  // the number, its sign extended
  for (int i = 0; i < kMaxBytes; ++i) {
    const int shift = 8 * (kMaxBytes - 1 - i);
    bytes[static_cast<size_t>(i)] = static_cast<unsigned char>(value >> (shift < 64 ? shift : 63));
  }
  const auto first = static_cast<size_t>(kMaxBytes - num_bytes);
  // Flips the first num_bytes bits; their number encodes the length.
  for (int bit = 0; bit < num_bytes; ++bit)
    bytes[first + static_cast<size_t>(bit / 8)] ^= static_cast<unsigned char>(0x80 >> (bit % 8));
  for (size_t i = first; i < bytes.size(); ++i) out->push_back(static_cast<char>(bytes[i]));
}

}  // namespace

std::string slice_key(std::string_view name, const TensorBox& box) {
  std::string key;
  // The name is between a fixed 0 and the box, so keys sort by tensor name.
  put_unsigned(&key, 0);
  put_text(&key, name);
  put_unsigned(&key, box.start.size());
  for (size_t d = 0; d < box.start.size(); ++d) {
    put_signed(&key, box.start[d]);
    put_signed(&key, box.length[d]);
  }
  return key;
}

TensorBox with_whole_dims(TensorBox box, const std::vector<int64_t>& shape) {
  for (size_t d = 0; d < shape.size(); ++d)
    if (box.start[d] == 0 && box.length[d] == shape[d]) box.length[d] = -1;
  return box;
}

}  // namespace lockstep::checkpoint
