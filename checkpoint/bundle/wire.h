#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

/// Numbers as they lie in files: little-endian, varints of 7 bits a byte.
namespace lockstep::checkpoint {

inline void put_varint(std::string* out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

/// Takes a varint off the front of `bytes`; nothing if it is cut or longer than 64 bits.
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

/// `bytes` must hold at least 4.
inline uint32_t read_fixed32(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= uint32_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return value;
}

}  // namespace lockstep::checkpoint
