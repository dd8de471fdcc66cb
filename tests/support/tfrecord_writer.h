#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/files/files.h"

/// TFRecord files and tf.train.Example, written by hand.
namespace lockstep::tests {

inline std::string little_endian(uint64_t value, int num_bytes) {
  std::string bytes;
  for (int i = 0; i < num_bytes; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

inline std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}

/// A field whose value has a length.
inline std::string wire_field(int number, std::string_view bytes) {
  return varint(static_cast<uint64_t>(number) << 3 | 2) + varint(bytes.size()) + std::string(bytes);
}

inline std::string bytes_feature(std::string_view bytes) {
  return wire_field(1, wire_field(1, bytes));
}
inline std::string floats_feature(const std::vector<float>& values) {
  return wire_field(2, wire_field(1, {reinterpret_cast<const char*>(values.data()),
                                      values.size() * sizeof(float)}));
}
inline std::string ints_feature(const std::vector<int64_t>& values) {
  std::string packed;
  for (const int64_t value : values) packed += varint(static_cast<uint64_t>(value));
  return wire_field(3, wire_field(1, packed));
}

/// Collects features.
class ExampleText {
 public:
  ExampleText& add(std::string_view name, const std::string& feature) {
    features_ += wire_field(1, wire_field(1, name) + wire_field(2, feature));
    return *this;
  }
  std::string bytes() const { return wire_field(1, features_); }

 private:
  std::string features_;
};

/// One record with its checksums.
inline std::string tfrecord(std::string_view data) {
  const auto sum = [](std::string_view bytes) {
    return little_endian(masked_crc32c(crc32c(bytes)), 4);
  };
  const std::string length = little_endian(data.size(), 8);
  return length + sum(length) + std::string(data) + sum(data);
}

}  // namespace lockstep::tests
