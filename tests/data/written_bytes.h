#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// Small files of each format, by hand.
namespace lockstep::data::written {

inline std::string big_endian32(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16),
          static_cast<char>(value >> 8), static_cast<char>(value)};
}

/// An IDX file of uint8 values.
inline std::string idx_of(const std::vector<uint32_t>& sizes, std::string_view values) {
  std::string bytes = std::string("\0\0\x08", 3) + static_cast<char>(sizes.size());
  for (const uint32_t size : sizes) bytes += big_endian32(size);
  return bytes + std::string(values);
}

/// A .npy file, version 1.
inline std::string npy_of(const std::string& type, const std::string& shape, std::string_view data,
                          const std::string& order = "False") {
  const std::string dict =
      "{'descr': '" + type + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
  return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(dict.size() & 255) +
         static_cast<char>(dict.size() >> 8) + dict + std::string(data);
}

/// A ustar member with its padding.
inline std::string tar_member(const std::string& name, const std::string& data, char kind = '0') {
  std::string header(512, '\0');
  const auto put = [&](size_t at, const std::string& text) {
    header.replace(at, text.size(), text);
  };
  const auto octal = [](size_t value, int digits) {
    std::string text(static_cast<size_t>(digits), '0');
    for (size_t at = text.size(); value > 0; value /= 8)
      text[--at] = static_cast<char>('0' + value % 8);
    return text;
  };
  put(0, name.substr(0, 100));
  put(124, octal(data.size(), 11));
  header[156] = kind;
  put(257, std::string("ustar\00000", 8));
  put(148, std::string(8, ' '));
  size_t sum = 0;
  for (const char byte : header) sum += static_cast<uint8_t>(byte);
  put(148, octal(sum, 6) + std::string("\0 ", 2));
  return header + data + std::string((512 - data.size() % 512) % 512, '\0');
}
inline std::string tar_end() { return std::string(1024, '\0'); }

}  // namespace lockstep::data::written
