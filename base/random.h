#pragma once

#include <cstdint>
#include <initializer_list>

namespace lockstep {

/// Counter-based random numbers: value i of a stream is a pure function of (key, i). So no state
/// has to be saved, and no rank can get out of step. Source: the finalizer of SplitMix64 (Steele,
/// Lea, Flood 2014) over key + i * golden ratio.
class CounterRandom {
 public:
  /// Folds the key from its parts, e.g. {seed, stream, epoch}. Different lists of parts give
  /// independent streams.
  CounterRandom(std::initializer_list<int64_t> key_parts) {
    for (const int64_t part : key_parts)
      key_ = mix(key_ ^ mix(static_cast<uint64_t>(part) + kGolden));
  }

  uint64_t bits(uint64_t index) const { return mix(key_ + (index + 1) * kGolden); }
  /// Returns the key, for code that computes bits() elsewhere.
  uint64_t key() const { return key_; }
  static constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
  static constexpr uint64_t kMix1 = 0xbf58476d1ce4e5b9, kMix2 = 0x94d049bb133111eb;
  /// Returns a uniform number in [0, 1) with 53 bits.
  double uniform(uint64_t index) const {
    return static_cast<double>(bits(index) >> 11) * 0x1.0p-53;
  }
  /// Returns a uniform number in [0, bound), bound > 0 (multiply-shift; the bias is below bound /
  /// 2^64).
  uint64_t below(uint64_t index, uint64_t bound) const {
    __extension__ using Wide = unsigned __int128;
    return static_cast<uint64_t>((static_cast<Wide>(bits(index)) * bound) >> 64);
  }

 private:
  static constexpr uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * kMix1;
    z = (z ^ (z >> 27)) * kMix2;
    return z ^ (z >> 31);
  }

  uint64_t key_ = 0;
};

}  // namespace lockstep
