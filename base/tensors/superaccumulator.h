#pragma once

#include <array>
#include <cstdint>

namespace lockstep {

/// Exact sum of non-negative float64 numbers, independent of order and grouping. So each rank may
/// add some numbers and join the sums in any way. The result has the same bits as on one rank that
/// adds all.
///
/// A number is a 53-bit integer times a power of two. It is added to two or three counters of
/// 32-bit digits. They have 31 more bits for carries, enough for 2^31 additions.
///
/// Method: a small superaccumulator (R. Neal, Fast exact summation using small and large
/// superaccumulators, 2015).
class Superaccumulator {
 public:
  /// Number of counters: the digits, and one for infinite numbers and NaNs. Sums are joined by
  /// adding counter by counter.
  static constexpr int kNumCounters = 68;

  void add(double number);
  /// Returns the sum as float64, which may differ from the nearest one in the last bit; NaN if a
  /// number was not finite.
  double value() const;

  std::array<int64_t, kNumCounters>& counters() { return counters_; }
  const std::array<int64_t, kNumCounters>& counters() const { return counters_; }

 private:
  std::array<int64_t, kNumCounters> counters_{};
};

}  // namespace lockstep
