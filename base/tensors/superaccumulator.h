#pragma once

#include <array>
#include <cstdint>

namespace lockstep {

/// The exact sum of float64 numbers that are not negative, whatever their order and grouping:
/// so ranks may each add some and join their sums in any way, and the bits of the result are those
/// of one rank that adds all.
///
/// A number is its 53-bit whole times a power of two; it is added to counters of 32-bit digits,
/// two or three of them, which have 31 more bits for carries: up to 2^31 additions. Method: a small
/// superaccumulator (R. Neal, Fast exact summation using small and large superaccumulators, 2015).
class Superaccumulator {
 public:
  /// Digits, and how many numbers were infinite or not a number. A sum of two sums is the sum of
  /// these, place by place.
  static constexpr int kNumCounters = 68;

  void add(double number);
  /// Rounded once, to the nearest but for the last bit; NaN if a number was not finite.
  double value() const;

  std::array<int64_t, kNumCounters>& counters() { return counters_; }
  const std::array<int64_t, kNumCounters>& counters() const { return counters_; }

 private:
  std::array<int64_t, kNumCounters> counters_{};
};

}  // namespace lockstep
