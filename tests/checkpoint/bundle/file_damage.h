#pragma once

#include <cstdint>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/checkpoint/save_fixture.h"

namespace lockstep::checkpoint::tests {

/// Damages a file in place and repairs it: much faster than writing it again.
class FileDamage {
 public:
  explicit FileDamage(const std::string& path)
      : good_(bytes_of(path)), descriptor_(::open(path.c_str(), O_WRONLY | O_CLOEXEC)) {
    EXPECT_GE(descriptor_, 0) << path;
  }
  ~FileDamage() { ::close(descriptor_); }
  FileDamage(const FileDamage&) = delete;
  FileDamage& operator=(const FileDamage&) = delete;

  size_t num_bytes() const { return good_.size(); }

  void flip_bit(uint64_t bit) {
    const char bad = static_cast<char>(good_.at(bit / 8) ^ (1 << (bit % 8)));
    put(bit / 8, {&bad, 1});
  }
  void mend_bit(uint64_t bit) { put(bit / 8, {&good_.at(bit / 8), 1}); }

  void cut(size_t num_bytes) {
    EXPECT_EQ(::ftruncate(descriptor_, static_cast<off_t>(num_bytes)), 0);
  }
  void mend_cut(size_t num_bytes) {
    put(num_bytes, std::string_view(good_).substr(num_bytes));
    cut(good_.size());  // after a cut behind the end
  }

 private:
  void put(size_t offset, std::string_view bytes) {
    EXPECT_EQ(::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes.size()));
  }

  std::string good_;
  int descriptor_;
};

}  // namespace lockstep::checkpoint::tests
