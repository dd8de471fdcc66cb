#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace lockstep::fuzz {

/// Makes false and hostile files of good ones. What case i of a seed is depends on nothing else.
class ByteMutator {
 public:
  /// `seeds` must hold one at least.
  ByteMutator(std::vector<std::string> seeds, uint64_t seed)
      : seeds_(std::move(seeds)), seed_(seed) {}

  std::string bytes_of_case(uint64_t index);

 private:
  uint64_t below(uint64_t n) { return random_() % n; }
  void change(std::string* bytes);
  void put_odd_number(std::string* bytes);
  void put_odd_text(std::string* bytes);

  std::vector<std::string> seeds_;
  uint64_t seed_;
  std::mt19937_64 random_;
};

/// Writes right checksums into the parsable part of a PNG or tar file, so that the parts after them
/// are reached.
void mend_png(std::string* bytes);
void mend_tar(std::string* bytes);

}  // namespace lockstep::fuzz
