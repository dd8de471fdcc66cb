#include "byte_mutator.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <zlib.h>

namespace lockstep::fuzz {
namespace {

constexpr size_t kTarBlock = 512;

uint32_t big_endian32(const std::string& bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

}  // namespace

std::string ByteMutator::bytes_of_case(uint64_t index) {
  random_.seed(seed_ * 0x9e3779b97f4a7c15 + index);
  std::string bytes = seeds_[index % seeds_.size()];
  for (uint64_t i = 1 + below(below(4) == 0 ? 12 : 2); i > 0; --i) change(&bytes);
  return bytes;
}

void ByteMutator::change(std::string* bytes) {
  const size_t size = bytes->size(), at = size == 0 ? 0 : below(size);
  switch (below(9)) {
    case 0:
      if (size > 0) (*bytes)[at] = static_cast<char>((*bytes)[at] ^ (1 << below(8)));
      break;
    case 1:
      if (size > 0) (*bytes)[at] = static_cast<char>(below(3) == 0 ? 0xff : random_());
      break;
    case 2:
      bytes->insert(at, std::string(1 + below(9), static_cast<char>(random_())));
      break;
    case 3:
      bytes->erase(at, 1 + below(9));
      break;
    case 4:
      bytes->resize(at);
      break;
    case 5:
      bytes->insert(at, bytes->substr(below(at + 1), 1 + below(600)));
      break;
    case 6:
      put_odd_text(bytes);
      break;
    default:
      put_odd_number(bytes);
  }
}

void ByteMutator::put_odd_number(std::string* bytes) {
  static constexpr std::array<uint64_t, 12> kOdd{0,
                                                 1,
                                                 0x7f,
                                                 0x80,
                                                 0xffff,
                                                 0x7fffffff,
                                                 0x80000000,
                                                 0xffffffff,
                                                 uint64_t{1} << 40,
                                                 INT64_MAX,
                                                 uint64_t{1} << 63,
                                                 UINT64_MAX};
  const uint64_t value = kOdd[below(kOdd.size())] + (below(4) == 0 ? below(5) - 2 : 0);
  const size_t width = size_t{1} << below(4);
  const bool is_big_endian = below(2) == 0;
  if (bytes->size() < width) return;
  const size_t at = below(bytes->size() - width + 1);
  for (size_t i = 0; i < width; ++i)
    (*bytes)[at + i] = static_cast<char>(value >> (8 * (is_big_endian ? width - 1 - i : i)));
}

void ByteMutator::put_odd_text(std::string* bytes) {
  static constexpr std::array<std::string_view, 14> kOdd{"99999999999999999999",
                                                         "-1",
                                                         "0",
                                                         "\"",
                                                         "\"\"",
                                                         ",",
                                                         "\n",
                                                         "\r\n",
                                                         "..",
                                                         "/../",
                                                         "(",
                                                         "[[[[[[",
                                                         "'",
                                                         "77777777777"};
  const std::string_view text = kOdd[below(kOdd.size())];
  const size_t at = bytes->empty() ? 0 : below(bytes->size());
  if (below(2) == 0)
    bytes->insert(at, text);
  else
    bytes->replace(at, text.size(), text);
}

void mend_png(std::string* bytes) {
  size_t at = 8;
  while (at + 12 <= bytes->size()) {
    const size_t length = big_endian32(*bytes, at);
    if (length > bytes->size() - at - 12) return;
    const auto* begin = reinterpret_cast<const unsigned char*>(bytes->data()) + at + 4;
    const auto sum = static_cast<uint32_t>(::crc32(0, begin, static_cast<unsigned>(length + 4)));
    for (size_t i = 0; i < 4; ++i)
      (*bytes)[at + 8 + length + i] = static_cast<char>(sum >> (24 - 8 * i));
    at += length + 12;
  }
}

void mend_tar(std::string* bytes) {
  for (size_t at = 0; at + kTarBlock <= bytes->size(); at += kTarBlock) {
    if (bytes->compare(at + 257, 5, "ustar") != 0) continue;
    uint64_t sum = 0;
    for (size_t i = 0; i < kTarBlock; ++i)
      sum += i >= 148 && i < 156 ? ' ' : static_cast<uint8_t>((*bytes)[at + i]);
    for (size_t i = 6; i-- > 0; sum /= 8) (*bytes)[at + 148 + i] = static_cast<char>('0' + sum % 8);
    (*bytes)[at + 154] = '\0';
    (*bytes)[at + 155] = ' ';
  }
}

}  // namespace lockstep::fuzz
